"""The keys of maps: which of them are one key. Pure; executor.

As for the keys of streams: -0.0 is 0.0, all NaN are one, Decimals are equal by value. A dictionary alone would keep a NaN
that nobody finds again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow.types as pat

from tidegate.state.fitting import Fitter
from tidegate.state.key_codec import NAN, canonical_decimal
from tidegate.types.containers import DataclassType, OptionalType, TupleType

if TYPE_CHECKING:
    from tidegate.state.declarations import StoredMap
    from tidegate.types import DataType


def map_key_fit(declaration: StoredMap) -> Callable[[Any], Any]:
    """Takes keys into one map state: checked, and the same to the bit where they are one key."""
    fit, canonical = Fitter(declaration, declaration.key_type).fit, canonical_form(declaration.key_type)
    return fit if canonical is None else lambda key: canonical(fit(key))


def canonical_form(data_type: DataType) -> Callable[[Any], Any] | None:
    """Makes values that Python takes for equal the same to the bit; None where they are so by themselves."""
    if data_type.name == "float" or pat.is_floating(data_type.arrow):
        return _canonical_float
    if data_type.name == "Decimal":
        return lambda value: canonical_decimal(value) if value.is_finite() else value
    if isinstance(data_type, OptionalType):
        inner = canonical_form(data_type.inner)
        return None if inner is None else lambda value: None if value is None else inner(value)
    if isinstance(data_type, TupleType):
        forms = [canonical_form(part) for part in data_type.parts]
        if not any(forms):
            return None
        return lambda value: tuple([p if f is None else f(p) for f, p in zip(forms, value, strict=True)])
    if isinstance(data_type, DataclassType):
        return _canonical_dataclass(data_type)
    return None


def _canonical_float(value: float | None) -> float | None:
    if value is None:
        return None
    return value + 0.0 if value == value else NAN


def _canonical_dataclass(data_type: DataclassType) -> Callable[[Any], Any] | None:
    forms = {name: form for name, part in data_type.fields.items() if (form := canonical_form(part)) is not None}
    if not forms:
        return None

    def canonical(value: Any) -> Any:
        twin = data_type._copied(value)
        for name, form in forms.items():
            object.__setattr__(twin, name, form(getattr(twin, name)))
        return twin

    return canonical
