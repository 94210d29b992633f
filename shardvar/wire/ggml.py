"""The element types of GGUF: numbers, and blocks of quantised numbers.

A block is a run of a row: 32 or 256 numbers as small integers, with the scale, and perhaps the
minimum, that they share. Example: a block of Q8_0 has a float16 scale ``d`` and 32 int8 ``q``,
together 34 bytes, and its numbers are ``d * q``. In blocks of 256, groups of 16 or 32 numbers have
scales of their own, which are small integers themselves.

Where the integers have fewer than 8 bits, a byte holds parts of several: not of neighbours, but of
numbers that lie a *width* apart, as vector instructions take them. ``_unpack`` undoes that.

The types IQ1 to IQ3 have numbers of points instead of integers, and signs of the points' values.
Types that only hold intermediate results of llama.cpp (Q8_1, Q8_K) also have sums of their
integers, which decoding does not need.

To add a type, add its row to ``_TYPES`` and a function from fields to numbers to ``_DECODERS``.

Codebooks. A point of IQ1, IQ2 and IQ3 is 4 or 8 values of a small set. Example: a point of IQ2 has
8 values, each 8, 25 or 43. Of the 3**8 = 6561 points that there could be, IQ2_XXS uses 256, and a
byte tells which.

In each codebook the points are in ascending order of the number whose digits are the positions of
their values in the set, the first value being the lowest digit. So a codebook is a set of points,
and a set is one bit a point: ``_SETS`` has these bits, deflated, in base 85. The points were found
by the authors of llama.cpp; they are part of the format, as its block layouts are, and were taken
from the package gguf, with which the tests compare them.
"""

import zlib
from base64 import b85decode
from collections.abc import Callable
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardvar.errors import UnsupportedError


class _Codebook(NamedTuple):
    """A set of points, each ``length`` values of a small set."""

    values: tuple[int, ...]
    length: int
    points: str
    """Bit ``n`` is set if the point whose number in base ``len(values)`` is ``n`` is in the set."""


@cache
def codebook(name: str) -> npt.NDArray[np.float32]:
    """Return the points of a type as rows, [points, values of a point].

    >>> codebook("IQ2_XXS").shape, codebook("IQ2_XXS")[1].tolist()
    ((256, 8), [43.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0])
    """
    values, length, points = _CODEBOOKS[name]
    bits = np.unpackbits(
        np.frombuffer(zlib.decompress(b85decode(points), -zlib.MAX_WBITS), np.uint8),
        bitorder="little",
    )
    # Digits of 5 = 2 + 1 * 3 in base 3, lowest first: 2, 1, 0, ...
    digits = np.flatnonzero(bits)[:, None] // len(values) ** np.arange(length) % len(values)
    found: npt.NDArray[np.float32] = np.array(values, np.float32)[digits]
    found.flags.writeable = False
    return found


_SETS = {
    "IQ2_XXS": (
        "1;N3I13?f3Fg29_ZJ5ia1~!2GIR8{m`u&~XKKIIbEK)}yyxaRVCw)`PXL%XQJ?S}w5FiV1va9lyS*-yRuxUzQv8V<3j8J?51`19X^8vfy1<="
        "bBiYNd|1q1*v;N9o$&WTmzp`|r+4c3wc41g0mAg~i4h<#qjFa!*s06GjnU?3X=C?EhX!%!$tEPMetAOHXZ005wuP^1C~z<I1f5G+v!1z-Ref"
        "XoJrLIDG!27mzo01E~HK(GV@5C8-K001B$008h0"
    ),
    "IQ2_XS": (
        "1;Igz!$1%OFctLNJ7E8(2Qqgr#Q*=wO7Hvry=UJizxRF4?iIhko?Q~pd-i?jD$m(gs+g@8!@TQrRocvoVw$Kx=lA|SXU~e?U(Y6w=VJ(-vz>"
        "G?n}AUStfhwH0}3$UeS0=hPn*_gg5tYPz@Qo}0`yK1t$-HN@Qvp^`(2-_JZD?+HM27TbDvzL#Yz{9#5A}{CqXsaU;sR4_ljb6Szyp$R;u)n4"
        "W^;dRE-%3Jpq7WHt7}*0JK760F(|i01X5bpwNxESMKug+)-T+g^7Lrv@sL{LqX_L<e~}yg|6xqB|<a;P=+sd0~#(60165MG#XB-KwuhkMI#C"
        "W0{~zs<ACV`7FZDZ2L"
    ),
    "IQ2_S": (
        "ZIMB$Wibc^OE7Z-W<LgA<`Lrlx6*^$+y8yKogS<lD^-=XYP4RJdzH80CvBI~yX{(4HO|Ui<yC&tqLg&qMvUrJX(G`|KWPylZq0z;ROYHN(of"
        "Z@(aPCAr#4*K>jyYmU7$B{#ULv6q=mqZ4Ac}u0ZxvbO{H`8jCQw-RDs5){5P-zP0+jCoox^>6aWk~01aVRt*YUl+^gEta1Kq^4N+C6a<9pa_"
        "Iw)#nBPc+lNJ*sxDmi!HLCn1|D5c=`_>nbr#xI>AbbH00|@x6(b6@H7>`3k1w{bKZ=f0Wx&VxAj|90|-cf*vvAUmbQ&_kBB>H%^IMw%>w4al"
        "OZR`g=g(g6RfV^~t79gwa+3L<V<7o&${KsLpzh}q9<az~OO?Lu%w_^Y*_k#h`aNr~41C)3i{<@iXi^@Y&2yuBd{Q&"
    ),
    "IQ3_XXS": (
        "1;H_H0x=K(z}eNVWL;$ndW#C>6-SYt{K%q0ydq_unVIXSv$!99>zv}6{qeG1y&w#GZub|Zz+&>lkd8jCJLqh1bOx$Lo=!IixH!oLpalB(&ca"
        "t`@Q!}<jzwO;1<PRAk_m8}EMy<Vsuuag5sOmN0K}#qiiPQ9z#z=+*Bihjc6iuWn2;08AOKbiP$cnivM?2@U?AR5MFI$z3QSKEiDbis2f)OF0"
        "t1Ewf1wnd0*Y0{G6<wZn*ad-{{"
    ),
    "IQ3_S": (
        "1;IgT6j2laz<Q6@@TXV5hY`1(&IoZ%(UD}KZh|0QXA&YL*-h{Oq7lJd(yG7T&fA}Hcz%2SxO7YX{<uspqfJ|ePklHp@vyB;ik<8B%i7jaD*4"
        "8BGx7Fy_~It(^OTz$T*k{(n>p%vb2p`mi=FXmA~!imIJv<%<eVyAzdj9z;rM=d+;1y+Hs0og?YrEK6{|a&eX{Ra$7tfaWKMIg(SrI{hacJU&"
        "_^MzqGBh==_#IOt$nCelN{#it7auJ8fKX4R2kxath2T-o@I+;MIVO+2K^Z1Pl=-G1ZScpHI-AX{ZLt`$abl5A4fgswiUHPt&Binr+|Zz5N^>"
        "az2=JODZs2L8#-Y|zzCcSYxGjtU0{2eAu0A6OA7)@p-2e8e*"
    ),
    "IQ1_S": (
        "EmA>CoJSabcdFraOl4y~L2`QctFhBr5$i4KWszN2^kPEt2RzxdNXa=(J}0~Bm)R6TAha}>aWKg^4Xg1`wx6&8PgZ(p>8%H8J%qX*0$v&n#LT"
        "X}&Ajlu&-1*`bL~P@H*DrIRz7ogN!#-%DXPy$iprG>BmIUcN=E^e`9PX<%ku|*5Mto|zA{(}s6v{|M**&<@CSp543nr%)tPHp$xUn<(&He<o"
        "VU2Yjwl2KF5v~ag!p6pC3Cdfyl0#K(#^w8wxxzzakl&C&_fnOOipK9F$6jLxBWb(qJ`zsveyFRTu?ZoXrNNKS~ti(c9*E8=xUH*2_MZzOk&H"
        "a#8erfvWu39pCs19dkQNh=qfZYa~UeRPZek-ab+s%50=HLc*e*}py3y~DO|SV-PfQvG7+;HD5xf;vmyO9HL|$#*Rw`r$vq7J8x37PE2&y52`"
        "$mn&Tlrh>pz-*9Rmi^r9g>kSSvD<sA-<HTiLrqYl;>%7aa>L)9mc=YG?0t(M^8WzIAx~-|d&LzRC8!c>Br8%kkskgMW0K_wAvY$4xh=nkU)V"
        "!JVXUVPf&f@zo*(%ee1{fhozK(y!{?10}%1{p2H1i13y6ev3VAYqQIeFTbDsee)o%@{@i~jQsJW4|w+ugt-+`{$dtS*UUgN3feBP<)|DERd}"
        "v?DSHzBTRz-Nx!+*7HaTLZWMfDHEne44E$<T`uJ(800+zd|0Zk*JQFl3dDHGsbRKY=S;Xb8`kA?`m^?IYhxC|63@m!#QwUouCJt$hJv$@S+d"
        "G$@x(-pD!vzdC8a2A?yeIXQyd0+G$yJjq6o{Ww`4V|XUdlg+f1GApt6Ucv9{y*jZP-*r2hyWmP@r*i_fvOIOg9y&eRl419tfw#?!&LARhDor"
        "@x(jpf0R"
    ),
}

_CODEBOOKS = {
    "IQ1_S": _Codebook((-1, 0, 1), 8, _SETS["IQ1_S"]),
    "IQ2_XXS": _Codebook((8, 25, 43), 8, _SETS["IQ2_XXS"]),
    "IQ2_XS": _Codebook((8, 25, 43), 8, _SETS["IQ2_XS"]),
    "IQ2_S": _Codebook((8, 25, 43), 8, _SETS["IQ2_S"]),
    "IQ3_XXS": _Codebook((4, 12, 20, 28, 36, 44, 52, 62), 4, _SETS["IQ3_XXS"]),
    "IQ3_S": _Codebook((1, 3, 5, 7, 9, 11, 13, 15), 4, _SETS["IQ3_S"]),
}
"""The codebooks by type; IQ1_M shares the grid of IQ1_S."""


_Array = npt.NDArray[Any]
_Floats = npt.NDArray[np.float32]


class BlockType(NamedTuple):
    name: str
    length: int
    nbytes: int


NUMBERS = MappingProxyType(
    {
        0: "float32", 1: "float16", 24: "int8", 25: "int16", 26: "int32", 27: "int64", 28: "float64", 30: "bfloat16",
    }
)  # fmt: skip
"""The dtype of each type of single numbers."""

_TYPES = (
    (2, "Q4_0", 32, "d low", "<f2, 16u1"),
    (3, "Q4_1", 32, "d m low", "<f2, <f2, 16u1"),
    (6, "Q5_0", 32, "d high low", "<f2, 4u1, 16u1"),
    (7, "Q5_1", 32, "d m high low", "<f2, <f2, 4u1, 16u1"),
    (8, "Q8_0", 32, "d q", "<f2, 32i1"),
    (9, "Q8_1", 32, "d sum q", "<f4, <f4, 32i1"),
    (10, "Q2_K", 256, "scales low d m", "16u1, 64u1, <f2, <f2"),
    (11, "Q3_K", 256, "high low scales d", "32u1, 64u1, 12u1, <f2"),
    (12, "Q4_K", 256, "d m scales low", "<f2, <f2, 12u1, 128u1"),
    (13, "Q5_K", 256, "d m scales high low", "<f2, <f2, 12u1, 32u1, 128u1"),
    (14, "Q6_K", 256, "low high scales d", "128u1, 64u1, 16i1, <f2"),
    (15, "Q8_K", 256, "d q sums", "<f4, 256i1, 16<i2"),
    (16, "IQ2_XXS", 256, "d words", "<f2, (8,2)<u4"),
    (17, "IQ2_XS", 256, "d point scales", "<f2, 32<u2, 8u1"),
    (18, "IQ3_XXS", 256, "d point signs", "<f2, 64u1, 8<u4"),
    (19, "IQ1_S", 256, "d point high", "<f2, 32u1, 8<u2"),
    (20, "IQ4_NL", 32, "d low", "<f2, 16u1"),
    (21, "IQ3_S", 256, "d point high signs scales", "<f2, 64u1, 8u1, 32u1, 4u1"),
    (22, "IQ2_S", 256, "d point signs high scales", "<f2, 32u1, 32u1, 8u1, 8u1"),
    (23, "IQ4_XS", 256, "d high scales low", "<f2, <u2, 4u1, 128u1"),
    (29, "IQ1_M", 256, "point high scales", "32u1, 16u1, 4<u2"),
    (34, "TQ1_0", 256, "low high d", "48u1, 4u1, <f2"),
    (35, "TQ2_0", 256, "low d", "64u1, <f2"),
    (39, "MXFP4", 32, "exponent low", "u1, 16u1"),
    (40, "NVFP4", 64, "scales low", "4u1, 32u1"),
    (41, "Q1_0", 128, "d low", "<f2, 16u1"),
)  # fmt: skip
"""Each type of blocks: its number, its name, the numbers of a block, and the names of its fields with NumPy's
formats of them: ``d`` scales, ``m`` minimums, ``low`` and ``high`` the bits of the integers or points.

Q8_1 has the layout that the package gguf describes. llama.cpp has made the two floats smaller
since, but such blocks are in no file: it quantizes activations to them while it computes.
"""

_LAYOUTS = {name: np.dtype(formats) for _, name, _, _, formats in _TYPES}
for _type in _TYPES:
    _LAYOUTS[_type[1]].names = tuple(_type[3].split())
BLOCKS = MappingProxyType(
    {
        number: BlockType(name, length, _LAYOUTS[name].itemsize)
        for number, name, length, _, _ in _TYPES
    }
)
"""The types of blocks by their numbers. The missing numbers were given up by ggml, or are of single
numbers."""

_UNEVEN = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)
"""The sixteen values of IQ4, which lie closer around 0."""
_FP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)
"""The sixteen values of a float of 4 bits, doubled."""


def dequantize(blocks: npt.NDArray[np.uint8], name: str) -> _Floats:
    """Return the numbers of blocks: [..., blocks of a row * bytes] -> [..., blocks of a row *
    numbers].

    ``UnsupportedError`` for a name that is not a type, and for rows that are not whole blocks.

    >>> dequantize(np.frombuffer(b"\\x00\\x38" + bytes(range(32)), np.uint8), "Q8_0")[:4].tolist()
    [0.0, 0.5, 1.0, 1.5]
    """
    kind = next((each for each in BLOCKS.values() if each.name == name), None)
    if kind is None:
        remedy = (
            f"These types are: {', '.join(_DECODERS)}. Blocks of any type can be read as bytes."
        )
        raise UnsupportedError(f"Blocks of the type {name!r} are not dequantized.", remedy)
    if blocks.dtype != np.uint8 or not blocks.ndim or blocks.shape[-1] % kind.nbytes:
        cause = (
            f"A row of {name} has a multiple of {kind.nbytes} bytes as uint8; this is "
            f"{blocks.dtype} {blocks.shape}."
        )
        raise UnsupportedError(cause, "Give whole rows of blocks.")
    shape = (*blocks.shape[:-1], blocks.shape[-1] // kind.nbytes * kind.length)
    if not blocks.size:
        return np.empty(shape, np.float32)
    fields = np.ascontiguousarray(blocks).reshape(-1, kind.nbytes).view(_LAYOUTS[name])[:, 0]
    # A scale may be infinite, or NaN: the numbers are the file's.
    with np.errstate(all="ignore"):
        return np.asarray(_DECODERS[name](fields), np.float32).reshape(shape)


ROUNDED = {"Q4_0": 4, "Q4_1": 4, "Q5_0": 5, "Q5_1": 5, "Q8_0": 8}
"""The bits of an integer of the types that ``quantize`` makes."""


def quantize(numbers: _Floats, name: str) -> npt.NDArray[np.uint8]:
    """Return blocks of numbers, rounded to nearest, as the package gguf makes them: [..., numbers of a
    row] -> [..., bytes of a row].

    In types without a minimum, the number of the largest magnitude becomes the lowest integer, such
    as -8, which has no positive counterpart: the scale has the other sign.

    >>> dequantize(quantize(np.arange(32, dtype=np.float32), "Q4_0"), "Q4_0")[8::8].tolist()
    [7.75, 15.5, 23.25]
    """
    bits, values = ROUNDED[name], numbers.reshape(-1, 32)
    blocks = np.zeros(len(values), _LAYOUTS[name])
    with np.errstate(all="ignore"):
        if name.endswith("1"):
            least = values.min(axis=1, keepdims=True)
            blocks["m"] = least[:, 0]
            scale = (values.max(axis=1, keepdims=True) - least) / np.float32((1 << bits) - 1)
            values, half = values - least, 0.5
        else:
            at = np.abs(values).argmax(axis=1, keepdims=True)
            top, half = np.take_along_axis(values, at, axis=1), (1 << bits - 1) + 0.5
            scale = np.abs(top) / np.float32(127) if bits == 8 else top / np.float32(-1 << bits - 1)
        blocks["d"] = scale[:, 0]
        values = values * np.where(scale == 0, np.float32(0), np.float32(1) / scale)
    if bits == 8:  # halves are rounded away from 0
        whole = np.floor(np.abs(values))
        blocks["q"] = np.copysign(whole + (np.abs(values) - whole >= 0.5), values)
    else:
        codes = np.trunc(values + np.float32(half)).clip(0, (1 << bits) - 1).astype(np.uint8)
        blocks["low"] = codes[:, :16] & np.uint8(15) | codes[:, 16:] << np.uint8(4)
        if bits == 5:
            blocks["high"] = np.packbits(codes >> np.uint8(4), axis=1, bitorder="little")
    return blocks.view(np.uint8).reshape(*numbers.shape[:-1], -1)


def _unpack(octets: _Array, width: int, bits: int) -> _Array:
    """Return small integers: of each ``width`` bytes first all lowest ``bits``, then all next ones.

    >>> _unpack(np.array([[0x21, 0x43]], np.uint8), 2, 4).tolist()
    [[1, 3, 2, 4]]
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    parts = octets.reshape(len(octets), -1, 1, width) >> shifts & np.uint8((1 << bits) - 1)
    return np.asarray(parts).reshape(len(octets), -1)


def _scale(fields: _Array, name: str = "d") -> _Floats:
    """[blocks, 1] a field of float16."""
    return np.asarray(fields[name].astype(np.float32)[:, None])


def _scaled(scales: _Array, integers: _Array) -> _Floats:
    """Return scales [blocks, groups] times integers [blocks, numbers], in groups."""
    shape = (*scales.shape, integers.shape[1] // scales.shape[1])
    return scales.astype(np.float32)[..., None] * integers.astype(np.float32).reshape(shape)


def _nibbles(fields: _Array, width: int = 16) -> _Array:
    return _unpack(fields["low"], width, 4)


def _five_bits(fields: _Array) -> _Array:
    """[blocks, 32] integers of four bits and a fifth one, which all lie in four bytes."""
    fifth = np.unpackbits(fields["high"], axis=1, bitorder="little")
    return np.asarray(_nibbles(fields) | fifth << np.uint8(4))


def _q3_k(fields: _Array) -> _Array:
    # Sixteen scales of six bits: four in bytes 0 to 7, two in bytes 8 to 11.
    octets = fields["scales"]
    six_bits = (_unpack(octets[:, :8], 8, 4) | _unpack(octets[:, 8:], 4, 2) << np.uint8(4)).astype(
        np.int8
    ) - np.int8(32)
    # The third bit is set where nothing is subtracted.
    integers = (
        _unpack(fields["low"], 32, 2).astype(np.int8)
        + 4 * _unpack(fields["high"], 32, 1).astype(np.int8)
        - 4
    )
    return _scaled(_scale(fields) * six_bits, integers)


def _q4_k(fields: _Array, high: int | _Array = 0) -> _Array:
    # Scales and minimums [blocks, 8] of six bits each. Bytes 0 to 3 have the first four scales and
    # bytes 4 to 7 the first four minimums, in their lower six bits. The others have four bits in bytes
    # 8 to 11, and the upper two of the bytes before.
    first, second, rest = (fields["scales"][:, start : start + 4] for start in (0, 4, 8))
    scales = np.concatenate([first & 63, rest & 15 | first >> 6 << 4], axis=1)
    minimums = np.concatenate([second & 63, rest >> 4 | second >> 6 << 4], axis=1)
    numbers = _scaled(_scale(fields) * scales, _nibbles(fields, 32) | high)
    return np.asarray(numbers - (_scale(fields, "m") * minimums)[..., None])


def _iq4_xs(fields: _Array) -> _Array:
    high = fields["high"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    six_bits = (_unpack(fields["scales"], 1, 4) | high << 4).astype(np.int8) - np.int8(32)
    return _scaled(_scale(fields) * six_bits, _UNEVEN[_nibbles(fields)])


def _tq1_0(fields: _Array) -> _Array:
    """A byte is a fraction of 256 whose digits in base 3 are five (or four) numbers."""
    low, high = fields["low"], fields["high"]
    digits = [_ternary(low[:, :32], 5), _ternary(low[:, 32:], 5), _ternary(high, 4)]
    return np.asarray(_scale(fields) * (np.concatenate(digits, axis=1).astype(np.float32) - 1))


def _ternary(octets: _Array, count: int) -> _Array:
    """Return [blocks, count * octets] all first digits, then all second ones, and so on.

    Example: 0.2101 in base 3 is 64 / 81, stored as 203 of 256, rounded up. 203 * 3 = 609 = 2 * 256
    + 97: the first digit is 2, and the others are the digits of 97.
    """
    rests = octets[:, None, :] * (3 ** np.arange(count)).astype(np.uint8)[:, None]  # modulo 256
    return np.asarray(rests.astype(np.uint16) * 3 >> 8).reshape(len(octets), -1)


def _nvfp4(fields: _Array) -> _Array:
    """Four groups of 16 numbers; each has a scale of 8 bits, a float without sign (UE4M3)."""
    octets = fields["scales"]
    exponent, mantissa = (octets >> 3 & 15).astype(np.int32), (octets & 7).astype(np.float32)
    # The scales are halved, because the numbers are doubled; 127 is NaN in UE4M3, and 0 here.
    scales = np.ldexp(np.where(exponent == 0, mantissa, mantissa + 8), np.maximum(exponent, 1) - 11)
    scales = np.where(octets == 0x7F, 0, scales)
    return np.asarray(scales[..., None] * _FP4[_unpack(fields["low"], 8, 4)].reshape(-1, 4, 16))


def _signs(octets: _Array) -> _Floats:
    """[..., 8] 1 or -1 for each bit of a byte, the lowest first."""
    bits = np.unpackbits(octets[..., None], axis=-1, bitorder="little")
    return np.asarray(np.where(bits == 0, np.float32(1), np.float32(-1)), np.float32)


def _even_signs(numbers: _Array) -> _Floats:
    """[..., 8] the signs that seven bits mean: an eighth makes the number of ones even."""
    octets = numbers.astype(np.uint8) & np.uint8(127)
    return _signs(octets | np.bitwise_count(octets) << np.uint8(7))


def _four_signs(words: _Array) -> _Floats:
    """[..., 32] signs of a word: four numbers of seven bits, below a scale of four bits."""
    numbers = words[..., None] >> np.arange(0, 28, 7, dtype=np.uint32)
    return _even_signs(numbers).reshape(*words.shape, 32)


def _four_bit_scales(fields: _Array, integers: _Array, factor: float) -> _Floats:
    """Return scales whose four bits count halves."""
    scales = integers.astype(np.float32) + np.float32(0.5)
    return np.asarray(_scale(fields) * scales * np.float32(factor), np.float32)


def _points(name: str, scales: _Floats, numbers: _Array, signs: _Floats) -> _Array:
    """Points by number [blocks, points], times scales [blocks, groups], times signs."""
    points = codebook(name)[numbers].reshape(*scales.shape, -1)
    return np.asarray(scales[..., None] * points * signs.reshape(points.shape))


def _iq2_scales(fields: _Array) -> _Floats:
    return _four_bit_scales(fields, _unpack(fields["scales"], 1, 4), 0.25)


def _three_bits(words: _Array) -> _Array:
    # Four in the lower 12 bits of each word.
    return (words[..., None] >> np.arange(0, 12, 3, dtype=np.uint16) & 7).reshape(len(words), -1)


def _iq1_s(fields: _Array) -> _Array:
    # A word has three high bits of four numbers, a scale of three bits, and the sign of the shift.
    words = fields["high"]
    scales = _scale(fields) * (2 * (words >> 12 & 7) + 1)
    high = _three_bits(words)
    return _shifted(scales, fields["point"] | high << 8, words >> 15)


def _iq1_m(fields: _Array) -> _Array:
    # The float16 scale is in the upper four bits of four words, the lowest bits first; below are
    # four scales each.
    words = fields["scales"]
    nibbles = words >> 12 << np.arange(0, 16, 4, dtype=np.uint16)
    scale = np.bitwise_or.reduce(nibbles, axis=1, keepdims=True).view(np.float16).astype(np.float32)
    scales = _three_bits(words)
    # Four bits a number: three high bits, and the sign of the shift.
    high = _unpack(fields["high"], 1, 4).astype(np.uint16)
    return _shifted(scale * (2 * scales + 1), fields["point"] | (high & 7) << 8, high >> 3)


def _shifted(scales: _Floats, numbers: _Array, is_down: _Array) -> _Array:
    """Points of IQ1, whose values are -1, 0 and 1, shifted by an eighth up or down."""
    points = codebook("IQ1_S")[numbers]
    shifts = np.where(is_down == 0, np.float32(0.125), np.float32(-0.125)).repeat(
        32 // is_down.shape[1], axis=1
    )
    return np.asarray(scales[..., None] * (points + shifts[..., None]).reshape(*scales.shape, -1))


_DECODERS: dict[str, Callable[[_Array], _Array]] = {
    "Q4_0": lambda fields: _scale(fields) * (_nibbles(fields).astype(np.float32) - 8),
    "Q4_1": lambda fields: (
        _scale(fields) * _nibbles(fields).astype(np.float32) + _scale(fields, "m")
    ),
    "Q5_0": lambda fields: _scale(fields) * (_five_bits(fields).astype(np.float32) - 16),
    "Q5_1": lambda fields: (
        _scale(fields) * _five_bits(fields).astype(np.float32) + _scale(fields, "m")
    ),
    "Q8_0": lambda fields: _scale(fields) * fields["q"].astype(np.float32),
    "Q8_1": lambda fields: _scale(fields) * fields["q"].astype(np.float32),
    "Q8_K": lambda fields: _scale(fields) * fields["q"].astype(np.float32),
    "Q1_0": lambda fields: np.where(
        _unpack(fields["low"], 1, 1) == 1, _scale(fields), -_scale(fields)
    ),
    "Q2_K": lambda fields: (
        _scaled(_scale(fields) * (fields["scales"] & 15), _unpack(fields["low"], 32, 2))
        - (_scale(fields, "m") * (fields["scales"] >> 4))[..., None]
    ),
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": lambda fields: _q4_k(fields, _unpack(fields["high"], 32, 1) << np.uint8(4)),
    "Q6_K": lambda fields: _scaled(
        _scale(fields) * fields["scales"],
        (_nibbles(fields, 64) | _unpack(fields["high"], 32, 2) << np.uint8(4)).astype(np.int8)
        - np.int8(32),
    ),
    "IQ1_S": _iq1_s,
    "IQ1_M": _iq1_m,
    "IQ2_XXS": lambda fields: _points(
        "IQ2_XXS",
        # Of two words, the first is four points.
        _four_bit_scales(fields, fields["words"][..., 1] >> 28, 0.25),
        fields["words"][..., :1].copy().view(np.uint8),
        _four_signs(fields["words"][..., 1]),
    ),
    # Nine bits of a point's number, and seven of its signs.
    "IQ2_XS": lambda fields: _points(
        "IQ2_XS", _iq2_scales(fields), fields["point"] & 511, _even_signs(fields["point"] >> 9)
    ),
    "IQ2_S": lambda fields: _points(
        "IQ2_S",
        _iq2_scales(fields),
        fields["point"] | _unpack(fields["high"], 1, 2).astype(np.uint16) << 8,
        _signs(fields["signs"]),
    ),
    "IQ3_XXS": lambda fields: _points(
        "IQ3_XXS",
        _four_bit_scales(fields, fields["signs"] >> 28, 0.5),
        fields["point"],
        _four_signs(fields["signs"]),
    ),
    "IQ3_S": lambda fields: _points(
        "IQ3_S",
        _scale(fields) * (1 + 2 * _unpack(fields["scales"], 1, 4)),
        fields["point"] | _unpack(fields["high"], 1, 1).astype(np.uint16) << 8,
        _signs(fields["signs"]),
    ),
    "IQ4_NL": lambda fields: _scale(fields) * _UNEVEN[_nibbles(fields)],
    "IQ4_XS": _iq4_xs,
    "TQ1_0": _tq1_0,
    "TQ2_0": lambda fields: _scale(fields) * (_unpack(fields["low"], 32, 2).astype(np.float32) - 1),
    "MXFP4": lambda fields: np.ldexp(
        _FP4[_nibbles(fields)], fields["exponent"].astype(np.int32)[:, None] - 128
    ),
    "NVFP4": _nvfp4,
}
