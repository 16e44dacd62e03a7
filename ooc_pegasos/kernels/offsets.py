"""What to add to some scores so that they cost least: the bias of a batch."""

from ooc_pegasos.kernels.jit import kernel
from ooc_pegasos.kernels.losses import ABSOLUTE, EPSILON_INSENSITIVE, HINGE, loss_at

_HALVINGS = 60


@kernel
def point_of_level(points, jumps, count, level):
    """The point where the sum of the jumps at points up to it first exceeds `level`: a weighted median in O(count).

    As quickselect does, which orders both arrays on its way as far as it has to.
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
def best_offset(loss, parameter, scores, labels, weights, count, points, jumps):
    """The b that minimises the sum of c l(z + b, y) over some rows; `points` and `jumps` have room for two a row."""
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
    # smooth ones: the slope grows with b
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
