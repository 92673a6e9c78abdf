"""Writes one golden file: a GGUF (version 3) of tensors and of metadata that says how it was made.

Owns: the form of the files under tests/golden/. The same inputs and versions give the same bytes: no date, no host, no path.
A numpy array of shape (a, b, c) becomes a tensor with GGUF extents [c, b, a], that is, the same bytes in the same order.
"""
import os
import sys
import tempfile

import gguf
import numpy as np

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Golden:
    """Collects tensors and metadata, then writes them at once: a temporary name, renamed when whole."""

    def __init__(self, name, command, **versions):
        self.path = os.path.join(REPO, "tests", "golden", name)
        self.tensors = []
        self.meta = {"golden.command": command, "golden.version.gguf": installed("gguf"),
                     "golden.version.numpy": np.__version__}
        for what, version in versions.items():
            self.meta[f"golden.version.{what}"] = str(version)

    def note(self, key, value):
        """A str, bool, int (i64 if negative, else u64), float (f64), a flat list of one of these, or an int32 array."""
        self.meta[f"golden.{key}"] = value

    def tensor(self, name, array, raw_type=None):
        """raw_type: a gguf.GGMLQuantizationType, for an array of uint8 whose rows are that type's blocks."""
        self.tensors.append((name, np.ascontiguousarray(array), raw_type))

    def f32(self, name, array):
        """Anything float-like (also a torch tensor), rounded once to F32."""
        self.tensor(name, numpy_of(array).astype(np.float32))

    def f64(self, name, array):
        self.tensor(name, numpy_of(array).astype(np.float64))

    def i32(self, name, array):
        self.tensor(name, numpy_of(array).astype(np.int32))

    def write(self, limit_bytes=400_000):
        folder = os.path.dirname(self.path)
        os.makedirs(folder, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=folder, suffix=".tmp")
        os.close(handle)
        try:
            out = gguf.GGUFWriter(temporary, "golden")
            for key, value in self.meta.items():
                add_meta(out, key, value)
            for name, array, raw_type in self.tensors:
                out.add_tensor(name, array, raw_dtype=raw_type)
            out.write_header_to_file()
            out.write_kv_data_to_file()
            out.write_tensors_to_file()
            out.close()
            size = os.path.getsize(temporary)
            if size > limit_bytes:
                sys.exit(f"{self.path}: {size} bytes, above the limit of {limit_bytes}; store less")
            os.chmod(temporary, 0o644)
            os.replace(temporary, self.path)
        except BaseException:
            if os.path.exists(temporary):
                os.unlink(temporary)
            raise
        print(f"{os.path.relpath(self.path, REPO)}: {len(self.tensors)} tensors, {size} bytes")


def numpy_of(array):
    return array.detach().cpu().numpy() if hasattr(array, "detach") else np.asarray(array)


def installed(package):
    import importlib.metadata
    return importlib.metadata.version(package)


def add_meta(out, key, value):
    kinds = gguf.GGUFValueType
    if isinstance(value, bool):
        out.add_bool(key, value)
    elif isinstance(value, str):
        out.add_string(key, value)
    elif isinstance(value, int):
        out.add_key_value(key, value, kinds.INT64 if value < 0 else kinds.UINT64)
    elif isinstance(value, float):
        out.add_float64(key, value)
    elif isinstance(value, np.ndarray) and value.dtype == np.int32:
        out.add_key_value(key, [int(v) for v in value.ravel()], kinds.ARRAY, kinds.INT32)
    elif isinstance(value, (list, tuple)):
        sub = {str: kinds.STRING, int: kinds.INT64, float: kinds.FLOAT64}[type(value[0])]
        out.add_key_value(key, list(value), kinds.ARRAY, sub)
    else:
        raise TypeError(f"{key}: no GGUF form for {type(value)}")
