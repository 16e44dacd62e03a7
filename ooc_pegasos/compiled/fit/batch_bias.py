"""The bias of a batch that minimises its loss."""

from ooc_pegasos.compiled.fit.losses import ABSOLUTE, EPSILON_INSENSITIVE, HINGE, HUBER, dual_at, loss_at
from ooc_pegasos.compiled.jit import kernel

_HALVINGS = 60


@kernel
def point_of_level(points, jumps, count, level):
    """Return the point where the cumulative sum of jumps first exceeds `level`: a weighted quantile in O(count).

    The algorithm is quickselect, which partially sorts both arrays.
    """
    low, high = 0, count - 1
    before = 0.0
    while low < high:
        middle = (low + high) // 2
        a, b, c = points[low], points[middle], points[high]
        pivot = max(min(a, b), min(max(a, b), c))
        left, right, at = low, high, low
        below, same = 0.0, 0.0
        while at <= right:  # less than the pivot, equal to it, greater
            if points[at] < pivot:
                below += jumps[at]
                points[at], points[left] = points[left], points[at]
                jumps[at], jumps[left] = jumps[left], jumps[at]
                left += 1
                at += 1
            elif points[at] > pivot:
                points[at], points[right] = points[right], points[at]
                jumps[at], jumps[right] = jumps[right], jumps[at]
                right -= 1
            else:
                same += jumps[at]
                at += 1
        if before + below > level:
            high = left - 1
        elif before + below + same > level:
            return pivot
        else:
            before += below + same
            if right + 1 > count - 1 or right == high:
                return pivot
            low = right + 1
    return points[low]


@kernel
def _slopes_at(loss, tube, score, y, c, b):
    """Return (smallest, largest) subgradient of a row's loss at the offset b, for a loss with kinks.

    Comparisons use the same numbers as `best_offset`, so that kinks are detected exactly.
    """
    if loss == HINGE:
        point = y - score
        least = -c if y > 0 and b <= point else c if y < 0 and b > point else 0.0
        most = -c if y > 0 and b < point else c if y < 0 and b >= point else 0.0
        return least, most
    low, high = y - score - tube, y - score + tube
    least = -c if b <= low else c if b > high else 0.0
    most = -c if b < low else c if b >= high else 0.0
    return least, most


@kernel
def balanced_slopes(loss, parameter, scores, labels, weights, count, b, slopes):
    """Compute subgradients of c l(z + b, y) at the best b with sum 0; return the sums of their -l* and of their sizes.

    The rows on a kink get equal shares of the remainder. If all rows are of one class slopes are 0: there is no
    minimum.
    """
    kinked = loss == HINGE or loss == ABSOLUTE or loss == EPSILON_INSENSITIVE
    tube = parameter if loss == EPSILON_INSENSITIVE else 0.0
    lowest, highest, one_class = 0.0, 0.0, True
    for i in range(count):
        one_class = one_class and labels[i] * labels[0] > 0
        if kinked:
            least, most = _slopes_at(loss, tube, scores[i], labels[i], weights[i], b)
            lowest += least
            highest += most
    part = min(max(-lowest / (highest - lowest), 0.0), 1.0) if highest > lowest else 0.0
    total, magnitude = 0.0, 0.0
    for i in range(count):
        slopes[i] = 0.0
        c, term = weights[i], 0.0
        if kinked:
            least, most = _slopes_at(loss, tube, scores[i], labels[i], c, b)
            slopes[i] = least + part * (most - least)
            if slopes[i] != 0.0:
                term = c * dual_at(loss, parameter, labels[i], -slopes[i] / c)
        elif loss == HUBER or not one_class:
            _value, g, dual = loss_at(loss, parameter, scores[i] + b, labels[i])
            slopes[i] = c * g
            term = c * dual if g != 0.0 else 0.0
        total += term
        magnitude += abs(term) + abs(slopes[i] * labels[i])
    return total, magnitude


@kernel
def best_offset(loss, parameter, scores, labels, weights, count, points, jumps):
    """Return the b that minimises the sum of c l(z + b, y); `points` and `jumps` have room for two numbers per row."""
    if loss == HINGE:
        level = 0.0
        for i in range(count):
            points[i], jumps[i] = labels[i] - scores[i], weights[i]
            if labels[i] > 0:
                level += weights[i]
        return point_of_level(points, jumps, count, level * (1.0 - 1e-15))
    if loss == ABSOLUTE or loss == EPSILON_INSENSITIVE:
        tube = parameter if loss == EPSILON_INSENSITIVE else 0.0
        level = 0.0
        for i in range(count):
            points[2 * i], points[2 * i + 1] = labels[i] - scores[i] - tube, labels[i] - scores[i] + tube
            jumps[2 * i] = jumps[2 * i + 1] = weights[i]
            level += weights[i]
        return point_of_level(points, jumps, 2 * count, level * (1.0 - 1e-15))
    # smooth losses: bisection, as the slope increases with b
    least, most = 0.0, 0.0
    for i in range(count):
        reach = abs(labels[i]) + abs(scores[i]) + 40.0
        least, most = min(least, -reach), max(most, reach)
    for _ in range(_HALVINGS):
        b = (least + most) / 2.0
        slope = 0.0
        for i in range(count):
            _value, g, _dual = loss_at(loss, parameter, scores[i] + b, labels[i])
            slope += weights[i] * g
        if slope > 0.0:
            most = b
        else:
            least = b
    return (least + most) / 2.0
