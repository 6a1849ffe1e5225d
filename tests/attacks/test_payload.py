"""Bytes that another side made up: refused in one sentence, for little memory."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
import safetensors.torch
import torch

from flgraph.errors import InputError
from flgraph.federation import Payload

ENTRY = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


def file(header: Any, data: bytes = b"\0" * 4) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def with_scalars(text: str) -> bytes:
    return file({"__metadata__": {"scalars": text}, "w": ENTRY})


def test_the_helpers_make_payloads() -> None:
    assert Payload.from_bytes(with_scalars('{"n": 1}')).scalars == {"n": 1}


def refusal(data: bytes) -> str:
    with pytest.raises(InputError) as caught:
        Payload.from_bytes(data)
    assert caught.value.field == "payload"
    assert len(str(caught.value)) < 300
    return str(caught.value)


def test_a_name_twice() -> None:
    """Whoever looks at the header, and whoever takes the tensors, may mean different ones."""
    entry = json.dumps(ENTRY)
    metadata = json.dumps({"scalars": "{}"})
    assert "a name twice" in refusal(file(f'{{"__metadata__": {metadata}, "w": {entry}, "w": {entry}}}'.encode()))
    assert "a name twice" in refusal(with_scalars('{"num_samples": 1, "num_samples": 1000}'))


def test_a_long_header_costs_nothing() -> None:
    names = {f"tensor {number}": ENTRY for number in range(160_000)}
    data = file({"__metadata__": {"scalars": "{}"}, **names})
    assert len(data) > 10 * 2**20
    tracemalloc.start()
    assert "a header of at most 4194304 bytes" in refusal(data)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_what_was_written_here_may_have_a_long_header() -> None:
    data = Payload(scalars={"text": "x" * 5 * 2**20}).to_bytes()
    assert Payload.from_bytes(data, max_header=len(data)).nbytes == len(data)
    refusal(data)


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2", "U16", "U64", "F4", "x" * 1000, ["F32"], None])
def test_types_that_no_algorithm_takes(dtype: Any) -> None:
    told = refusal(file({"__metadata__": {"scalars": "{}"}, "w": {**ENTRY, "dtype": dtype, "shape": [4]}}))
    if isinstance(dtype, str):
        assert "of tensors of BF16, BOOL" in told


def test_float8_is_named() -> None:
    data = safetensors.torch.save({"w": torch.ones(4).to(torch.float8_e5m2)}, {"scalars": "{}"})
    assert "F8_E5M2" in refusal(data)


@pytest.mark.parametrize(
    "scalars",
    [
        f'{{"n": {"9" * 400}}}',
        f'{{"n": {"9" * 5000}}}',
        '{"n": "\\ud800"}',
        '{"\\udfff": 1}',
        '{"n": {"m": 1}}',
        '{"n": [' + "[" * 5000,
        f'{{"{"x" * 501}": 1}}',
    ],
    ids=["400 digits", "5000 digits", "half a letter", "half a name", "nested", "deep", "long name"],
)
def test_scalars_that_others_could_not_write(scalars: str) -> None:
    refusal(with_scalars(scalars))


@pytest.mark.parametrize("shape", [[0, 2**62], [0, 2**63], [0, 2**64], [-1, 0], [1] * 5000, ["1"], "1", None, [1.0]])
def test_shapes(shape: Any) -> None:
    offsets = [0, 0] if isinstance(shape, list) and 0 in shape else [0, 4]
    data = b"" if offsets == [0, 0] else b"\0" * 4
    entry = {"dtype": "F32", "shape": shape, "data_offsets": offsets}
    refusal(file({"__metadata__": {"scalars": "{}"}, "w": entry}, data))


@pytest.mark.parametrize("header", [b"[]", b"3", b'{"w": 3}', b"{}", b'{"__metadata__": []}', b"\xff\xfe{}", b"{" * 9])
def test_headers_of_another_kind(header: bytes) -> None:
    refusal(file(header))


def test_long_names_are_refused_on_both_sides() -> None:
    with pytest.raises(InputError, match="names of at most 500 letters"):
        Payload({"x" * 501: torch.ones(1)})
    assert "names of at most 500" in refusal(file({"__metadata__": {"scalars": "{}"}, "x" * 501: ENTRY}))


def test_errors_do_not_repeat_what_came() -> None:
    secret = "1234567890" * 40
    for data in (file(f'{{"{secret}": }}'.encode()), with_scalars(f'{{"n": "{secret}'), file({secret: {secret: 1}})):
        assert secret not in refusal(data)
