"""Losses of one score by their formulas, and least objectives that other programs find."""

import numpy as np
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC, SVR, LinearSVC, LinearSVR

from ooc_pegasos.objective.losses import LOSSES


def _ramp(short, width):
    """The smoothed hinge of how much a margin falls short of 1."""
    return np.where(short > width, short - width / 2, np.maximum(short, 0) ** 2 / (2 * width))


def _bowl(off, edge):
    return np.where(abs(off) > edge, edge * (abs(off) - edge / 2), off**2 / 2)


FORMULAS = {
    "hinge": lambda z, y, _p: np.maximum(0, 1 - y * z),
    "logistic": lambda z, y, _p: np.logaddexp(0, -y * z),
    "smoothed-hinge": lambda z, y, p: _ramp(1 - y * z, p),
    "epsilon-insensitive": lambda z, y, p: np.maximum(0, abs(z - y) - p),
    "absolute": lambda z, y, _p: abs(z - y),
    "huber": lambda z, y, p: _bowl(z - y, p),
    "squared-hinge": lambda z, y, _p: np.maximum(0, 1 - y * z) ** 2,
    "squared": lambda z, y, _p: (z - y) ** 2 / 2,
}
DERIVATIVES = {  # of those that have one everywhere; the others' optima are found by LIBLINEAR
    "logistic": lambda z, y, _p: -y / (1 + np.exp(np.minimum(y * z, 700))),
    "smoothed-hinge": lambda z, y, p: -y * np.clip((1 - y * z) / p, 0, 1),
    "huber": lambda z, y, p: np.clip(z - y, -p, p),
    "squared-hinge": lambda z, y, _p: -2 * y * np.maximum(0, 1 - y * z),
    "squared": lambda z, y, _p: z - y,
}
SLOPES = DERIVATIVES | {
    "hinge": lambda z, y, _p: np.where(y * z <= 1, -y, 0.0),
    "epsilon-insensitive": lambda z, y, p: np.where(abs(z - y) > p, np.sign(z - y), 0.0),
    "absolute": lambda z, y, _p: np.sign(z - y),
}
LIPSCHITZ = tuple(name for name in FORMULAS if LOSSES[name].largest_dual is None)
"""Losses with a largest slope, which Pegasos can minimise."""
EXACT = ("hinge", "logistic", "epsilon-insensitive", "absolute")
"""Losses that scikit-learn minimises with a free bias."""


def primal(
    name: str, parameter: float, x: np.ndarray, y: np.ndarray, lam: float, c: np.ndarray, w: np.ndarray
) -> float:
    """Equation (1)."""
    return lam / 2 * float(w @ w) + float((c * FORMULAS[name](x @ w, y, parameter)).mean())


def least_objective(name: str, parameter: float, x: np.ndarray, y: np.ndarray, lam: float, c: np.ndarray) -> float:
    """The least value of (1), by a program that is not this one."""
    rows = len(y)
    if name in DERIVATIVES:

        def value_and_slope(w):
            slope = c * DERIVATIVES[name](x @ w, y, parameter) @ x / rows
            return primal(name, parameter, x, y, lam, c, w), lam * w + slope

        options = {"ftol": 1e-16, "gtol": 1e-12, "maxiter": 20_000, "maxfun": 100_000, "maxcor": 30}
        start = np.zeros(x.shape[1])
        return float(minimize(value_and_slope, start, jac=True, method="L-BFGS-B", options=options).fun)
    known = {"C": 1 / (lam * rows), "fit_intercept": False, "tol": 1e-10, "max_iter": 10_000_000, "dual": True}
    if name == "hinge":
        machine = LinearSVC(loss="hinge", **known)
    else:
        machine = LinearSVR(loss="epsilon_insensitive", epsilon=parameter, **known)
    machine.fit(x, y, sample_weight=c)
    return primal(name, parameter, x, y, lam, c, machine.coef_.ravel())


def parameter_of(name: str) -> float:
    return LOSSES[name].parameter or 0.0


def primal_with_bias(name, w, b, x, y, lam, c=1.0) -> float:
    """Equation (1) with a bias that is not regularised."""
    return lam / 2 * float(w @ w) + float((c * FORMULAS[name](x @ w + b, y, parameter_of(name))).mean())


def optimum_with_bias(name, x, y, lam, c=None):
    """The least objective over weights and bias that an independent program reaches, which is at least the optimum."""
    c, known, p = np.ones(len(y)) if c is None else c, {"C": 1 / (lam * len(y)), "tol": 1e-9}, parameter_of(name)
    middle = 0.0 if LOSSES[name].task == "binary" else float(np.median(y))
    if name in EXACT:
        machine = {
            "hinge": SVC(kernel="linear", max_iter=2_000_000, **known),
            "logistic": LogisticRegression(max_iter=100_000, **known),
        }.get(name, SVR(kernel="linear", epsilon=p, max_iter=2_000_000, **known))
        theirs = machine.fit(x, y - middle if middle else y, sample_weight=c)
        return primal_with_bias(name, theirs.coef_.ravel(), theirs.intercept_[0] + middle, x, y, lam, c)

    def both(v):
        slopes = c * SLOPES[name](x @ v[:-1] + v[-1], y, p) / len(y)
        return primal_with_bias(name, v[:-1], v[-1], x, y, lam, c), np.append(lam * v[:-1] + slopes @ x, slopes.sum())

    options = {"maxiter": 20_000, "maxfun": 200_000, "ftol": 1e-15, "gtol": 1e-11}
    begin = np.append(np.zeros(x.shape[1]), middle)
    return float(minimize(both, begin, jac=True, method="L-BFGS-B", options=options).fun)
