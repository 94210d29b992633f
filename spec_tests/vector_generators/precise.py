"""Logarithms, sines and cosines in decimal arithmetic of fifty digits, so that no library of any
machine is asked."""

from decimal import Decimal, localcontext

DIGITS = 50
TWO_PI = Decimal(
    "6.28318530717958647692528676655900576839433879875021164194988918461563281257241799725606965"
)


def log(number: float) -> float:
    """The natural logarithm, rounded to float64."""
    with localcontext() as context:
        context.prec = DIGITS
        return float(Decimal(number).ln())


def sin(angle: float) -> float:
    """The sine, rounded to float64."""
    return float(_series(Decimal(angle), 1))


def cos(angle: float) -> float:
    """The cosine, rounded to float64."""
    return float(_series(Decimal(angle), 0))


def _series(angle: Decimal, first: int) -> Decimal:
    """Taylor's series, from ``x`` for the sine or from 1 for the cosine; of at most a turn it has
    few terms."""
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
