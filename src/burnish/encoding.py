"""Values of the package as JSON and named tensors, and back through the constructors of an allow-list of classes.

A value is a tree of frozen dataclasses, tuples, dicts, numbers, strings and tensors. Nothing that is decoded can run, and
what does not fit is refused with the place where it stands.
"""

import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from burnish._checks import check_finite

__all__: list[str] = []

MAX_NDIM = 64  # of torch; it needs half a minute to refuse a tensor of 100,000 dimensions
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.bool)
_MAX_DEPTH = 64  # of nested values: far beyond any real one, far below Python's recursion limit


def encode(value: Any, kinds: Sequence[type]) -> tuple[Any, dict[str, Tensor]]:
    """A value as a JSON tree and the tensors it refers to, which are copies on the CPU named after where they stand.

    What comes back from a file is equal, and tensors have their layout again; a dict's keys come back sorted.

    Args:
        value: Dataclasses of `kinds`, tuples, dicts with str keys, tensors, str, int, bool, float and None, nested.
        kinds: The dataclasses that may occur.

    Raises:
        TypeError: If anything else occurs.
        ValueError: If a tensor has NaN or infinite entries, or the value is nested too deeply.
    """
    tensors: dict[str, Tensor] = {}
    return _encode(value, (), _by_name(kinds), tensors), tensors


def _by_name(kinds: Sequence[type]) -> dict[str, type]:
    names = {kind.__name__: kind for kind in kinds}
    if len(names) < len(kinds) or not all(is_dataclass(kind) for kind in kinds):
        raise TypeError(f"`kinds` must be dataclasses with different names, got {[kind.__name__ for kind in kinds]}.")
    return names


def _encode(value: Any, where: tuple[str, ...], kinds: dict[str, type], tensors: dict[str, Tensor]) -> Any:
    def inside(step: str, item: Any) -> Any:
        return _encode(item, (*where, step), kinds, tensors)

    name = ".".join(where) or "value"
    if len(where) > _MAX_DEPTH:
        raise ValueError(f"`{name[:80]}...` must be nested at most {_MAX_DEPTH} deep to be saved. Flatten it.")
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": repr(float(value))}
    if isinstance(value, Tensor):
        return _encode_tensor(name, value, tensors)
    if type(value) is tuple:
        return {"tuple": [inside(str(index), item) for index, item in enumerate(value)]}
    if type(value) is dict and all(type(key) is str for key in value):
        return {"dict": {key: inside(key, item) for key, item in value.items()}}
    kind = type(value)
    if kinds.get(kind.__name__) is not kind:
        raise TypeError(
            f"`{name}` must be a tensor, number, str, None, tuple, dict with str keys or one of {', '.join(sorted(kinds))}, "
            f"got {kind.__name__}. Convert it before saving."
        )
    parts = {item.name: getattr(value, item.name) for item in fields(kind) if item.init}
    _check_fields(kind, parts)
    return {"kind": kind.__name__, "fields": {step: inside(step, item) for step, item in parts.items()}}


def _encode_tensor(path: str, tensor: Tensor, tensors: dict[str, Tensor]) -> dict[str, Any]:
    check_storable(path, tensor)
    name = path.encode("utf-8", "replace").decode()  # a dict's key may hold what UTF-8 cannot
    while name in tensors or name == "__metadata__":  # keys with dots can make two paths equal
        name += "'"
    tensors[name] = plain_copy(tensor)
    # products round differently by memory layout: with that of the original, a posterior gives the same bits again
    order = sorted(range(tensor.ndim), key=tensor.stride, reverse=True)
    return {"tensor": name} if tensor.is_contiguous() or order == sorted(order) else {"tensor": name, "order": order}


def plain_copy(tensor: Tensor) -> Tensor:
    """One copy, whatever the device, layout, negation bit or gradient of the original."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu").copy_(tensor.detach())


def check_storable(name: str, tensor: Tensor) -> None:
    if tensor.dtype not in _DTYPES or tensor.layout != torch.strided or tensor.ndim > MAX_NDIM:
        raise TypeError(
            f"`{name}` must be a dense tensor of one of {', '.join(map(str, _DTYPES))} with at most {MAX_NDIM} dimensions, "
            f"got {tensor.dtype}, {tensor.layout} and {tensor.ndim} dimensions. Convert it."
        )
    check_finite(name, tensor, "Only finite values are stored: fit again.")
    if tensor.dtype == torch.bool and bool((tensor.view(torch.uint8) > 1).any()):
        raise ValueError(f"`{name}` must hold bytes 0 and 1, as bool does, got others. Make it with a comparison.")


def _check_fields(kind: type, parts: Mapping[str, Any]) -> None:
    """Refuses something else where the class wants a tensor; classes without checks of their own would take it."""
    for item in fields(kind):
        if item.type is Tensor and item.name in parts and not isinstance(parts[item.name], Tensor):
            raise TypeError(f"`{item.name}` of {kind.__name__} must be a tensor, got {type(parts[item.name]).__name__}.")


def decode(tree: Any, tensors: Mapping[str, Tensor], kinds: Sequence[type], device: torch.device | str = "cpu") -> Any:
    """The value that `encode` was given, on `device`, through the constructors of `kinds` and their checks.

    Raises:
        ValueError: If the tree is not one of `encode` for these kinds, a constructor refuses its fields, or the tensors are
            not exactly those that the tree refers to, each once.
    """
    decoder = _Decoder(_by_name(kinds), tensors, torch.device(device))
    value = decoder.value(tree, ())
    if unused := sorted(set(tensors) - decoder.used):
        raise damaged(f"nothing refers to the tensors {unused[:3]}", ())
    return value


def damaged(why: str, where: tuple[str, ...] | None = None) -> ValueError:
    place = "" if where is None else f" at `{'.'.join(where)[:200] or 'value'}`"
    return ValueError(f"the file is damaged{place}: {why}. Save it again, or use another copy.")


@dataclass(frozen=True)
class _Decoder:
    kinds: dict[str, type]
    tensors: Mapping[str, Tensor]
    device: torch.device
    used: set[str] = field(default_factory=set)

    def value(self, node: Any, where: tuple[str, ...]) -> Any:
        if len(where) > _MAX_DEPTH:
            raise damaged(f"nested more than {_MAX_DEPTH} deep", where)
        if node is None or type(node) in (bool, int, str) or (type(node) is float and math.isfinite(node)):
            return node
        match len(node) if type(node) is dict else 0, node:
            case 1, {"tensor": str(name)}:
                return self.tensor(name, None, where)
            case 2, {"tensor": str(name), "order": list(order)}:
                return self.tensor(name, order, where)
            case 1, {"float": "inf" | "-inf" | "nan" as text}:
                return float(text)
            case 1, {"tuple": list(items)}:
                return tuple(self.value(item, (*where, str(index))) for index, item in enumerate(items))
            case 1, {"dict": dict(items)} if all(type(key) is str for key in items):
                return {key: self.value(item, (*where, key)) for key, item in items.items()}
            case 2, {"kind": str(kind), "fields": dict(parts)}:
                return self.instance(kind, parts, where)
        raise damaged(f"no value is written as {reprlib.repr(node)}", where)

    def tensor(self, name: str, order: list[Any] | None, where: tuple[str, ...]) -> Tensor:
        if name not in self.tensors or name in self.used:
            raise damaged(f"the tensor {name!r} is {'used twice' if name in self.used else 'missing'}", where)
        self.used.add(name)
        tensor = self.tensors[name].to(self.device)
        try:
            check_storable(name, tensor)
            if order is None:
                return tensor
            if sorted(order) != list(range(tensor.ndim)):
                raise ValueError(f"{reprlib.repr(order)} is no order of its dimensions")
            return tensor.permute(order).contiguous().permute(sorted(range(tensor.ndim), key=order.__getitem__))
        except (TypeError, ValueError) as error:
            raise damaged(str(error), where) from error

    def instance(self, name: str, parts: dict[str, Any], where: tuple[str, ...]) -> Any:
        kind = self.kinds.get(name)
        if kind is None:
            raise damaged(f"{name[:80]!r} is none of {', '.join(sorted(self.kinds))}", where)
        names = {item.name for item in fields(kind) if item.init}
        if names != set(parts):
            missing, unknown = sorted(names - set(parts)), sorted(map(str, set(parts) - names))
            raise damaged(f"{name} with missing fields {missing} and unknown fields {unknown}", where)
        values = {step: self.value(part, (*where, step)) for step, part in parts.items()}
        try:
            _check_fields(kind, values)
            return kind(**values)
        except Exception as error:  # whatever a constructor trips over, it is the file that is wrong
            raise damaged(f"{name} refuses its fields ({type(error).__name__}: {error})", where) from error
