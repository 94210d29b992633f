"""Logarithms, sines and cosines in decimal arithmetic of fifty digits.

They are rounded once, so chapter 5 gives the same bits on every machine.
"""

from decimal import Decimal, localcontext

__all__ = [
    "DIGITS",
    "TWO_PI",
    "cos",
    "log",
    "sin",
]

DIGITS = 50
TWO_PI = Decimal(
    "6.28318530717958647692528676655900576839433879875021164194988918461563281257241799725606965"
)


def log(number: float) -> float:
    """Return the natural logarithm, rounded to float64.

    >>> log(1.0)
    0.0
    """
    with localcontext() as context:
        context.prec = DIGITS
        return float(Decimal(number).ln())


def sin(angle: float) -> float:
    """Return the sine, rounded to float64.

    >>> sin(0.5)
    0.479425538604203
    """
    return float(_series(Decimal(angle), 1))


def cos(angle: float) -> float:
    """Return the cosine, rounded to float64.

    >>> cos(0.0)
    1.0
    """
    return float(_series(Decimal(angle), 0))


def _series(angle: Decimal, first: int) -> Decimal:
    # Taylor's series begins with x for the sine and with 1 for the cosine. Angles of at most a
    # turn need few terms.
    with localcontext() as context:
        context.prec = DIGITS + 10
        angle = angle % TWO_PI
        term = angle if first else Decimal(1)
        total, power = term, first
        while abs(term) > Decimal(10) ** -DIGITS:
            term *= -angle * angle / ((power + 1) * (power + 2))
            total += term
            power += 2
        return total
