"""The codebooks of the IQ types of ggml: the points that a stored number means.

IQ1, IQ2 and IQ3 store no integers. They store the number of a point, and a point is 4 or 8 values
of a small set. Example: a point of IQ2 has 8 values, each 8, 25 or 43. Of the 3**8 = 6561 points
that there could be, IQ2_XXS uses 256, and a byte says which.

In each codebook the points are in ascending order of the number whose digits are the positions of
their values in the set, the first value being the lowest digit. So a codebook is a set of points,
and a set is one bit a point: ``_SETS`` has these bits, deflated, in base 85. The points were found
by the authors of llama.cpp; they are part of the format, as its block layouts are, and were taken
from the package gguf, with which the tests compare them.
"""

import zlib
from base64 import b85decode
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class _Codebook(NamedTuple):
    """The points that there could be, and the ones that there are."""

    values: tuple[int, ...]
    """The values of a point are from this set."""
    length: int
    """The number of values of a point."""
    points: str
    """Bit ``n`` is set if the point whose number in base ``len(values)`` is ``n`` belongs to the
    codebook."""


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
