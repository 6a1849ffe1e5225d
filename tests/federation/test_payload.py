from __future__ import annotations

import copy
import json
import math
import pickle
import struct
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from flgraph.errors import InputError
from flgraph.federation import Payload
from flgraph.federation.payload import pack, unpack

TENSORS: dict[str, Tensor] = {
    "bfloat16": torch.tensor([1.5, -2.0, math.inf], dtype=torch.bfloat16),
    "float16": torch.tensor([[0.1, 65504.0]], dtype=torch.float16),
    "float32": torch.tensor([1e-45, 3.4e38]),
    "float64": torch.tensor([0.1], dtype=torch.float64),
    "int64": torch.tensor([-(2**63), 2**63 - 1]),
    "int8": torch.tensor([-128, 127], dtype=torch.int8),
    "uint8": torch.tensor([0, 255], dtype=torch.uint8),
    "bool": torch.tensor([True, False]),
    "zero_dim": torch.tensor(7),
    "empty": torch.empty(0, 5),
    "transposed": torch.arange(6.0).view(2, 3).t(),
    "strided": torch.arange(10)[1::3],
    "expanded": torch.ones(1, 2).expand(3, 2),
}


def same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_come_back_as_they_were(name: str) -> None:
    back = Payload.from_bytes(Payload({name: TENSORS[name]}).to_bytes())
    assert list(back.tensors) == [name]
    assert same(back.tensors[name], TENSORS[name])


def test_all_tensors_together_come_back() -> None:
    back = Payload.from_bytes(Payload(TENSORS).to_bytes())
    assert back.tensors.keys() == TENSORS.keys()
    assert all(same(back.tensors[name], tensor) for name, tensor in TENSORS.items())


def test_tied_tensors_come_back_under_both_names() -> None:
    """The format refuses two names for one storage; tied weights and overlapping views must travel nevertheless."""
    weight = torch.arange(6.0).view(2, 3)
    tensors = {
        "encoder": weight,
        "decoder": weight,
        "row": weight[1],
        "turned": weight.t(),
        "rest": weight.view(-1)[1:],
    }
    back = Payload.from_bytes(Payload(tensors).to_bytes())
    assert all(same(back.tensors[name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize(
    "value",
    ["", "naïve\n\x1f\"'", 0, -1, 2**70, True, False, 0.1, -0.0, 5e-324, math.inf, -math.inf, math.nan],
    ids=repr,
)
def test_scalars_come_back_as_they_were(value: Any) -> None:
    back = Payload.from_bytes(Payload(scalars={"value": value}).to_bytes()).scalars["value"]
    assert type(back) is type(value)
    assert repr(back) == repr(value)


def test_nbytes_are_tensors_plus_header() -> None:
    payload = Payload(TENSORS, {"n": 3})
    data = payload.to_bytes()
    # by hand, in the order of TENSORS
    tensors = 3 * 2 + 2 * 2 + 2 * 4 + 8 + 2 * 8 + 2 + 2 + 2 + 8 + 0 + 6 * 4 + 3 * 8 + 6 * 4
    header = 8 + struct.unpack("<Q", data[:8])[0]
    assert sum(tensor.nbytes for tensor in payload.tensors.values()) == tensors
    assert payload.nbytes == len(data) == tensors + header


def test_bytes_are_safetensors() -> None:
    """Anybody can read a payload with the public format's own tools."""
    data = Payload({"w": torch.ones(2)}, {"n": 3}).to_bytes()
    header = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
    assert header["w"] == {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    assert same(safetensors.torch.load(data)["w"], torch.ones(2))


def test_gradients_stay_behind() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    assert not Payload.from_bytes(Payload({"w": parameter}).to_bytes()).tensors["w"].requires_grad


def test_cannot_be_changed() -> None:
    given = {"w": torch.ones(2)}
    payload = Payload(given, {"n": 1})
    given["other"] = torch.ones(1)
    assert list(payload.tensors) == ["w"]
    with pytest.raises(TypeError):
        payload.tensors["w"] = torch.zeros(2)  # type: ignore[index]
    with pytest.raises(TypeError):
        payload.scalars["n"] = 2  # type: ignore[index]
    with pytest.raises(FrozenInstanceError):
        payload.scalars = {}  # type: ignore[misc]


def test_bytes_share_nothing_with_either_side() -> None:
    source = torch.ones(3)
    payload = Payload({"w": source})
    data = payload.to_bytes()
    source.fill_(9)  # what a client trains on after it sent
    assert payload.to_bytes() == data
    first, second = Payload.from_bytes(data), Payload.from_bytes(data)
    first.tensors["w"].fill_(5)
    assert same(second.tensors["w"], torch.ones(3))
    assert same(Payload.from_bytes(data).tensors["w"], torch.ones(3))


def test_deepcopy_owns_its_tensors() -> None:
    payload = Payload({"w": torch.ones(2)}, {"n": 1})
    twin = copy.deepcopy(payload)
    twin.tensors["w"].fill_(3)
    assert same(payload.tensors["w"], torch.ones(2))
    assert twin.scalars == {"n": 1}


def test_comparing_payloads_is_no_error() -> None:
    """A dataclass compares its fields, and tensors of two elements have no truth value."""
    assert Payload({"w": torch.ones(2)}) != Payload({"w": torch.ones(2)})
    assert len({Payload(), Payload()}) == 2


def test_same_contents_same_bytes() -> None:
    assert Payload(dict(TENSORS), {"n": 1}).to_bytes() == Payload(dict(TENSORS), {"n": 1}).to_bytes()


def test_tensors_come_back_in_one_order() -> None:
    """The format's reader has a new order each time; a server that sums over names would get new bits each time."""
    data = Payload({f"layer.{number}": torch.ones(1) for number in range(12)}).to_bytes()
    assert {tuple(Payload.from_bytes(data).tensors) for _ in range(5)} == {tuple(Payload.from_bytes(data).tensors)}


@pytest.mark.parametrize("value", [None, [1], {"a": 1}, torch.tensor(1), 1j, b"x"], ids=repr)
def test_refuses_scalars_that_are_not_plain(value: Any) -> None:
    with pytest.raises(InputError, match=r"`payload\.scalars\.value` to be a str, int, float or bool"):
        Payload(scalars={"value": value})


def test_refuses_tensors_that_are_none() -> None:
    with pytest.raises(InputError, match=r"`payload\.tensors\.w` to be a tensor but got 'list'"):
        Payload({"w": [1.0]})  # type: ignore[dict-item]


def test_refuses_every_truncation() -> None:
    data = Payload({"w": torch.arange(3)}, {"n": 3}).to_bytes()
    for length in range(len(data)):
        with pytest.raises(InputError, match="whole safetensors bytes"):
            Payload.from_bytes(data[:length])
    with pytest.raises(InputError, match="whole safetensors bytes"):
        Payload.from_bytes(data + b"x")


@pytest.mark.parametrize("scalars", ["[1]", "3", '"text"', "null", "{", "[" * 100_000, '{"n": null}', '{"n": [1]}'])
def test_refuses_headers_of_another_kind(scalars: str) -> None:
    """What a client sends is not to be trusted: no header may end in another error."""
    data = safetensors.torch.save({"w": torch.ones(1)}, {"scalars": scalars})
    with pytest.raises(InputError):
        Payload.from_bytes(data)


def test_refuses_safetensors_that_are_no_payload() -> None:
    with pytest.raises(InputError):
        Payload.from_bytes(safetensors.torch.save({"w": torch.ones(1)}))


class Bomb:
    """Goes off when unpickled."""

    exploded = False

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return setattr, (Bomb, "exploded", True)


def test_never_unpickles() -> None:
    pickled = pickle.dumps({"w": Bomb()})
    for data in (pickled, struct.pack("<Q", len(pickled)) + pickled):
        with pytest.raises(InputError):
            Payload.from_bytes(data)
    assert not Bomb.exploded
    pickle.loads(pickled)
    assert Bomb.exploded, "the bomb is a dud, and this test shows nothing"


def test_is_never_pickled() -> None:
    """An engine that lets multiprocessing pickle payloads behind its back is told so."""
    with pytest.raises(TypeError):
        pickle.dumps(Payload({"w": torch.ones(1)}))


# ------------------------------------------------------------------------------------------------- groups, and states
def test_groups_nest_and_come_back() -> None:
    weights, control = {"a.weight": torch.ones(2), "b": torch.zeros(1)}, {"a.weight": torch.full((2,), 3.0)}
    payload = Payload({**weights, "control": control, "clients": {"north": {"z": torch.ones(1)}, "south": {}}})
    back = Payload.from_bytes(payload.to_bytes())
    for one in (payload, back):
        assert set(one.tensors) == {"a.weight", "b", "control/a.weight", "clients/north/z"}
        assert set(one.group()) == set(weights)
        assert same(one.group("control")["a.weight"], control["a.weight"])
        assert list(one.group("clients")) == ["north/z"]
        assert list(one.group("clients/north")) == ["z"]
        assert one.group("clients/south") == one.group("cont") == {}


def test_what_is_no_tensor_in_a_group_is_named() -> None:
    with pytest.raises(InputError, match=r"`payload\.tensors\.control/weight` to be a tensor but got 'float'"):
        Payload({"control": {"weight": 1.0}})  # type: ignore[dict-item]


def test_states_of_tensors_and_plain_values_come_back() -> None:
    state = {
        "models": [{"w": torch.ones(2, dtype=torch.float16)}, {}],
        "clusters": [["A", "B"], []],
        "loss": float("inf"),
        "none": None,
        "deep": {"a": {"b": (torch.tensor(3), "text", True)}},
    }
    back = unpack(Payload.from_bytes(pack(state).to_bytes()))
    assert list(back) == list(state)
    assert same(back["models"][0]["w"], state["models"][0]["w"])  # type: ignore[index]
    assert (back["clusters"], back["loss"], back["none"]) == (state["clusters"], math.inf, None)
    number, *rest = back["deep"]["a"]["b"]
    assert (number.item(), rest) == (3, ["text", True])
    assert type(back["deep"]["a"]["b"]) is tuple
    assert unpack(pack({})) == {}


@pytest.mark.parametrize("name", ["$tensor", "$tuple", "$", "$$tensor"])
def test_names_of_others_are_no_marks_in_a_state(name: str) -> None:
    """Clients choose names of metrics, and these are in checkpoints."""
    for state in ({name: 1.0}, {name: "0", "b": 2}, {"a": [{name: [1, ({name: None},)]}]}):
        assert unpack(pack(state)) == state


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"of": {3: "rounds"}}, r"`state\.of` to be a dictionary with names as keys but got 'the key 3'"),
        ({"seen": [1, {"A"}]}, r"`state\.seen\[1\]` to be a tensor, a plain value, or dictionaries .* got 'set'"),
    ],
)
def test_states_of_anything_else_are_refused(value: Any, message: str) -> None:
    """JSON would take the first one, and give it back with a text for the number."""
    with pytest.raises(InputError, match=message):
        pack(value)


def test_digests_do_not_depend_on_the_order() -> None:
    one = Payload({"a": torch.ones(1), "b": torch.zeros(1)}, {"x": 1, "y": 2})
    assert one.digest == Payload({"b": torch.zeros(1), "a": torch.ones(1)}, {"y": 2, "x": 1}).digest


def test_what_cannot_be_sent_is_refused() -> None:
    with pytest.raises(InputError, match="a dense tensor"):
        pack({"a": torch.eye(2).to_sparse()})
    with pytest.raises(InputError, match="printed"):
        Payload({"a\x1b[2J": torch.ones(1)})
