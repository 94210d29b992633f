"""Statements are signed and verified by the real tools: model_signing of the OpenSSF, DSSE envelopes of in-toto
and cosign, and their validator of statements."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.verbs.compare.manifest import statement_of

signing = pytest.importorskip("model_signing.signing", reason="model-signing is not installed")
verifying = pytest.importorskip("model_signing.verifying", reason="model-signing is not installed")
dsse = pytest.importorskip("securesystemslib.dsse", reason="securesystemslib is not installed")

PAYLOAD_TYPE = "application/vnd.in-toto+json"


@pytest.fixture
def statements(tmp_path: Path) -> list[Path]:
    """A statement of digests and one of a derivation, in a folder by themselves."""
    folder, source, result = tmp_path / "signed", tmp_path / "a", tmp_path / "b.safetensors"
    folder.mkdir()
    sv.save(source, {"w": np.arange(12.0).reshape(3, 4), "step": np.array(7)}, partition=2)
    sv.reshard(source, result, transpose="w", cast="float32")
    digests, derivation = folder / "digests.json", folder / "derivation.json"
    digests.write_text(json.dumps(statement_of(sv.digest(result))), encoding="utf-8")
    sv.certify(result, source, derivation, transpose="w", cast="float32")
    return [digests, derivation]


def hold(statements: list[Path], tmp_path: Path) -> bool:
    """True if shardvar finds both statements true."""
    (digests, derivation), result = statements, tmp_path / "b.safetensors"
    assert sv.verify(result, against=digests).ok
    return sv.verify_derivation(result, tmp_path / "a", derivation).ok


def test_model_signing_signs_a_folder_of_statements(statements: list[Path], tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, private, public = (
        ec.generate_private_key(ec.SECP256R1()),
        tmp_path / "k",
        tmp_path / "k.pub",
    )
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    private.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
    info = serialization.PublicFormat.SubjectPublicKeyInfo
    public.write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, info))
    folder, signature = tmp_path / "signed", tmp_path / "signature"
    signing.Config().use_elliptic_key_signer(private_key=private).sign(folder, signature)
    verifier = verifying.Config().use_elliptic_key_verifier(public_key=public)
    verifier.verify(folder, signature)
    assert hold(statements, tmp_path)
    for file in statements:
        content = file.read_bytes()
        file.write_bytes(content.replace(b"shardvarDigest1", b"shardvarDigest2", 1))
        with pytest.raises(ValueError):
            verifier.verify(folder, signature)
        file.write_bytes(content)
    verifier.verify(folder, signature)


@pytest.mark.parametrize("is_bundle", [False, True])
def test_an_envelope_is_verified_until_its_statement_changes(
    statements: list[Path], tmp_path: Path, is_bundle: bool
) -> None:
    from google.protobuf import json_format
    from in_toto_attestation.v1 import statement_pb2
    from in_toto_attestation.v1.statement import Statement
    from securesystemslib.exceptions import VerificationError
    from securesystemslib.signer import CryptoSigner

    signer = CryptoSigner.generate_ecdsa()
    for file in statements:
        content = file.read_bytes()
        Statement.copy_from_pb(json_format.Parse(content, statement_pb2.Statement())).validate()
        envelope = dsse.Envelope(content, PAYLOAD_TYPE, {})
        envelope.sign(signer)
        made: dict[str, Any] = envelope.to_dict()
        file.write_text(json.dumps({"dsseEnvelope": made} if is_bundle else made), encoding="utf-8")
        envelope = dsse.Envelope.from_dict(json.loads(json.dumps(made)))
        assert envelope.verify([signer.public_key], 1)
        envelope.payload = content.replace(b"shardvarDigest1", b"shardvarDigest2", 1)
        with pytest.raises(VerificationError):
            envelope.verify([signer.public_key], 1)
    assert hold(statements, tmp_path)
