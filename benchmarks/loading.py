"""How each library loads a folder of safetensors: with no import but its own, since a fresh process
that loads is timed whole."""

from pathlib import Path
from typing import Any

NAMES = [f"model-{number:05d}-of-00004.safetensors" for number in range(1, 5)]
"""The files, as transformers names them."""


def files(folder: str) -> list[Path]:
    return [Path(folder, name) for name in NAMES]


def load_shardvar(place: str) -> Any:
    import shardvar as sv

    return sv.load(place)


def load_safetensors(place: str) -> Any:
    from safetensors.numpy import load_file

    return {key: array for path in files(place) for key, array in load_file(path).items()}


def load_runai(place: str) -> Any:
    from runai_model_streamer import SafetensorsStreamer

    paths = (
        [f"{place}/{name}" for name in NAMES]
        if "://" in place
        else [str(path) for path in files(place)]
    )
    with SafetensorsStreamer() as streamer:
        streamer.stream_files(paths)
        return dict(streamer.get_tensors())


def load_fastsafetensors(place: str) -> Any:
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    loader = SafeTensorsFileLoader(SingleGroup(), device="cpu", nogds=True)
    loader.add_filenames({0: [str(path) for path in files(place)]})
    held = loader.copy_files_to_device()
    return held, {key: held.get_tensor(key) for key in loader.get_keys()}
