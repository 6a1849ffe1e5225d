from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from flgraph.errors import InputError
from flgraph.federation import Payload, Route, RouteKind, collected, personal, shared
from flgraph.federation.routes import RoutingTable, agree, describe_routes

MODEL: dict[str, Tensor] = {
    "convs.0.weight": torch.zeros(3, 2),
    "convs.0.bias": torch.zeros(3),
    "convs.1.weight": torch.zeros(3, 3),
    "head.weight": torch.zeros(2, 3),
    "norm.num_batches_tracked": torch.tensor(0),
}


def table(routes: Sequence[Route], tensors: dict[str, Tensor] = MODEL, client: str = "A") -> RoutingTable:
    return RoutingTable(routes, tensors, extra={"gradients/*": "gradient"}, scalars=("num_samples",), client=client)


def agreed(routes: Sequence[Route], **models: dict[str, Tensor]) -> dict[str, list[str]]:
    return agree({name: table(routes, model, name).signature() for name, model in models.items()}, routes)


# ------------------------------------------------------------------------------------------------------- precedence
def test_first_match_counts() -> None:
    routes = table([*personal("convs.0.*"), *shared("convs.*"), *personal("*")])
    assert routes.kind("convs.0.weight") == RouteKind.PERSONAL
    assert routes.kind("convs.0.bias") == RouteKind.PERSONAL
    assert routes.kind("convs.1.weight") == RouteKind.SHARED
    assert routes.shared == ["convs.1.weight"]


@pytest.mark.parametrize("hidden", [personal("head.*"), shared("head.*")])
def test_a_route_that_never_comes_to_bear_is_an_error(hidden: list[Route]) -> None:
    """Otherwise what its author means to keep would leave, because an earlier route says so."""
    with pytest.raises(
        InputError,
        match=r"`route head\.\*` to be that of a tensor of client `A` but got routes before it that cover the same",
    ):
        table([*shared("*"), *hidden])


def test_what_is_in_a_client_s_own_order_is_never_shared_by_place() -> None:
    """Whatever rule would share it; what is collected is no mean."""
    made = RoutingTable([*collected("head.weight"), *shared("*")], MODEL, own=["convs.*.weight", "head.*"])
    assert made.shared == ["convs.0.bias", "norm.num_batches_tracked"]
    assert made.kind("head.weight") == RouteKind.COLLECTED
    assert made.kind("convs.1.weight") == RouteKind.PERSONAL


def test_names_of_what_leaves_have_no_slash() -> None:
    named = {"parts.a/b": torch.ones(1), "rest": torch.ones(1)}
    with pytest.raises(InputError, match=r"tensors that leave have no `/` in their names, .* but got 'parts\.a/b'"):
        RoutingTable(shared("*"), named)
    assert RoutingTable([*personal("parts.*"), *shared("*")], named).shared == ["rest"]


def test_the_last_route_may_find_nothing_left() -> None:
    assert table([*shared("*"), *personal("*")]).shared == list(MODEL)


def test_tied_tensors_leave_together_or_not_at_all() -> None:
    one = torch.zeros(2)
    tied = {"encoder": one, "decoder": one}
    assert RoutingTable(shared("*"), tied).shared == ["encoder", "decoder"]
    with pytest.raises(
        InputError, match=r"the same for tied tensors, which are one, but got `encoder` personal and `decoder` shared"
    ):
        RoutingTable([*personal("encoder"), *shared("decoder")], tied)
    with pytest.raises(InputError, match="tied tensors, which are one"):
        RoutingTable(shared("*"), tied).agree(["decoder"])


def test_names_keep_the_order_of_the_model() -> None:
    assert table([*shared("head.*"), *shared("convs.*"), *personal("*")]).shared == [
        "convs.0.weight",
        "convs.0.bias",
        "convs.1.weight",
        "head.weight",
    ]


def test_patterns_are_case_sensitive() -> None:
    with pytest.raises(
        InputError, match=r"`route Convs\.\*` to be that of a tensor of client `A` but got `convs\.0\.weight`, "
    ):
        table([*shared("Convs.*"), *personal("*")])


# -------------------------------------------------------------------------------------------------- deny by default
def test_a_tensor_that_no_route_covers_is_an_error() -> None:
    with pytest.raises(
        InputError,
        match=r"`routes` to be those of every tensor of client `A` but got .* none of which matches `head\.weight`",
    ):
        table([*shared("convs.*"), *personal("norm.*")])


def test_a_pattern_that_matches_nothing_is_an_error() -> None:
    with pytest.raises(InputError, match=r"`route structure\.\*` to be that of a tensor of client `A`"):
        table([*shared("structure.*"), *personal("*")])


def test_a_pattern_behind_another_is_no_error() -> None:
    """FedPer with base ``*`` leaves nothing to its last rule, which still means something."""
    assert len(table([*shared("*"), *personal("*")]).shared) == len(MODEL)


# -------------------------------------------------------------------------------------------------------- agreement
WIDER = {**MODEL, "convs.0.weight": torch.zeros(3, 5)}
LACKING = {name: tensor for name, tensor in MODEL.items() if name != "head.weight"}


def test_equal_models_share_everything() -> None:
    assert agreed(shared("*"), A=MODEL, B=MODEL) == {"A": list(MODEL), "B": list(MODEL)}


def test_mismatch_error_names_both_forms() -> None:
    with pytest.raises(
        InputError, match=r"`convs\.0\.weight` to be the same in all .* got 3x2 float32 at `A` and 3x5 float32 at `B`"
    ):
        agreed(shared("*"), A=MODEL, B=WIDER, C=MODEL)
    with pytest.raises(InputError, match=r"`head\.weight` .* got 2x3 float32 at `A` and none at `B`"):
        agreed(shared("*"), A=MODEL, B=LACKING)


def test_mismatch_personal_keeps_it_from_everyone() -> None:
    names = agreed(shared("*", on_mismatch="personal"), A=MODEL, B=WIDER, C=LACKING)
    expected = [name for name in MODEL if name not in ("convs.0.weight", "head.weight")]
    assert names == {"A": expected, "B": expected, "C": expected}


def test_mismatch_of_dtype_counts() -> None:
    double = {**MODEL, "convs.0.bias": torch.zeros(3, dtype=torch.float64)}
    assert "convs.0.bias" not in agreed(shared("*", on_mismatch="personal"), A=MODEL, B=double)["A"]


def test_mismatch_owners_shares_among_those_who_have_it() -> None:
    names = agreed(shared("*", on_mismatch="owners"), A=MODEL, B=LACKING, C=MODEL)
    assert names == {"A": list(MODEL), "B": list(LACKING), "C": list(MODEL)}
    with pytest.raises(InputError, match=r"`convs\.0\.weight`"):
        agreed(shared("*", on_mismatch="owners"), A=MODEL, B=WIDER)


def test_owners_may_be_few_but_not_none() -> None:
    """A client without the relation is no error; a misspelt pattern, which nobody has, is."""
    routes = [*shared("head.*", on_mismatch="owners"), *shared("*")]
    assert agreed(routes, A=MODEL, B=LACKING) == {"A": list(MODEL), "B": list(LACKING)}
    with pytest.raises(InputError, match=r"`route haed\.\*` to be that of a shared tensor of some client"):
        agreed([*shared("haed.*", on_mismatch="owners"), *shared("*")], A=MODEL, B=MODEL)


def test_mismatch_is_that_of_the_first_matching_route() -> None:
    routes = [*shared("convs.0.weight", on_mismatch="personal"), *shared("*")]
    assert "convs.0.weight" not in agreed(routes, A=MODEL, B=WIDER)["B"]


def test_signature_tells_of_shared_tensors_only() -> None:
    """Names and shapes of personal tensors give away as much as anything: they stay at home."""
    assert table([*shared("convs.*"), *personal("*")]).signature() == {
        "convs.0.weight": "3x2 float32",
        "convs.0.bias": "3 float32",
        "convs.1.weight": "3x3 float32",
    }
    assert table(shared("*")).signature()["norm.num_batches_tracked"] == "scalar int64"


def test_agreement_cannot_share_what_the_rules_keep() -> None:
    """A server that claims an agreement on a personal tensor gets nothing."""
    routes = table([*shared("convs.*"), *personal("*")])
    routes.agree(["head.weight", "convs.0.bias"])
    assert routes.shared == ["convs.0.bias"]


# ----------------------------------------------------------------------------------------------------------- uploads
def test_upload_of_what_is_routed_passes() -> None:
    routes = table([*shared("convs.*"), *collected("head.*"), *personal("*")])
    routes.check_upload(
        Payload(
            {"convs.0.bias": torch.ones(3), "head.weight": torch.ones(2, 3), "gradients/head": torch.ones(9)},
            {"num_samples": 3},
        )
    )


def test_upload_of_personal_tensors_is_refused() -> None:
    routes = table([*shared("convs.*"), *personal("*")])
    with pytest.raises(
        InputError,
        match=r"`upload` of client `A` to be without personal tensors but got `head\.weight`, whose route is personal",
    ):
        routes.check_upload(Payload({"head.weight": torch.ones(2, 3)}))


def test_upload_of_what_was_not_agreed_on_is_refused() -> None:
    routes = table(shared("*", on_mismatch="personal"))
    routes.agree(["convs.0.bias"])
    assert routes.kind("head.weight") == RouteKind.PERSONAL
    with pytest.raises(InputError, match="personal"):
        routes.check_upload(Payload({"head.weight": torch.ones(2, 3)}))


def test_extra_patterns_open_no_door_to_personal_tensors() -> None:
    routes = RoutingTable(personal("*"), MODEL, extra={"*": "data"}, client="A")
    with pytest.raises(InputError, match="personal"):
        routes.check_upload(Payload({"head.weight": torch.ones(2, 3)}))
    routes.check_upload(Payload({"anything": torch.ones(1)}))


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (Payload({"secret": torch.ones(1)}), "to be of what the routes or `extra_tensors` name but got `secret`"),
        (
            Payload({"convs.0.bias": torch.ones(3, 1)}),
            r"`upload` of client `A` to be one with `convs\.0\.bias` of shape \[3\] but got \[3, 1\]",
        ),
        (Payload(scalars={"age": 30}), r"to be one with scalars among \['num_samples'\] but got 'age'"),
    ],
)
def test_upload_of_anything_else_is_refused(payload: Payload, message: str) -> None:
    with pytest.raises(InputError, match=message):
        table(shared("*")).check_upload(payload)


# ------------------------------------------------------------------------------------------------------- description
def test_describe_merges_clients() -> None:
    routes = [*shared("convs.*", on_mismatch="personal"), *personal("*")]
    tables = {"A": table(routes), "B": table(routes, WIDER), "C": table(routes, LACKING)}
    names = agree({name: one.signature() for name, one in tables.items()}, routes)
    for name, one in tables.items():
        one.agree(names[name])
    assert describe_routes(one.lines for one in tables.values()) == [
        ("convs.0.weight", "2 shapes, first 3x2 float32", "personal"),
        ("convs.0.bias", "3 float32", "shared"),
        ("convs.1.weight", "3x3 float32", "shared"),
        ("head.weight", "2x3 float32", "personal"),
        ("norm.num_batches_tracked", "scalar int64", "personal"),
        ("gradients/*", "gradient", "extra tensor"),
        ("num_samples", "", "scalar"),
        ("what the model logs", "", "metric"),
    ]


def test_describe_tells_owners_from_the_others() -> None:
    """A tensor that is shared by some clients and personal in others has a row for each."""
    routes = shared("*", on_mismatch="owners")
    one, other = table(routes), table(routes)
    other.agree(name for name in MODEL if name != "head.weight")
    rows = [row for row in describe_routes([one.lines, other.lines]) if row[0] == "head.weight"]
    assert rows == [("head.weight", "2x3 float32", "shared"), ("head.weight", "2x3 float32", "personal")]


def test_describe_lists_all_that_may_leave() -> None:
    """Extra tensors with what they are, scalars and metrics: what is not in the table does not leave."""
    routes = RoutingTable(
        personal("*"),
        {"w": torch.zeros(2)},
        extra={"ego_graphs/*": "data"},
        scalars=("head", "fanouts"),
        metrics=("mixing/*",),
    )
    assert describe_routes([routes.lines, routes.lines]) == [
        ("w", "2 float32", "personal"),
        ("ego_graphs/*", "data", "extra tensor"),
        ("head", "", "scalar"),
        ("fanouts", "", "scalar"),
        ("what the model logs", "", "metric"),
        ("mixing/*", "", "metric"),
    ]


# ------------------------------------------------------------------------------------------- what a site keeps besides
def tightened(routes: Sequence[Route], first: Sequence[str]) -> RoutingTable:
    return RoutingTable(routes, MODEL, first=first, client="A")


def test_first_patterns_only_tighten() -> None:
    """They make shared and collected tensors personal, all of a route's included, and open nothing."""
    rules = [*personal("head.*"), *collected("norm.*"), *shared("*")]
    routes = tightened(rules, ["norm.*", "convs.1.*"])
    assert routes.shared == ["convs.0.weight", "convs.0.bias"]
    assert routes.kind("norm.num_batches_tracked") == RouteKind.PERSONAL
    assert set(tightened(rules, ["head.*"]).shared) == set(tightened(rules, []).shared)
    assert tightened(rules, ["*"]).shared == []


def test_a_first_pattern_that_matches_nothing_is_an_error() -> None:
    with pytest.raises(InputError, match=r"personal` to be patterns .* client `A` but got `\*batch_norm\*`"):
        tightened(shared("*"), ["*batch_norm*"])


def test_what_only_some_have_may_be_kept_by_all() -> None:
    """Then nobody has what the route expects of some; which is no mistake in it."""
    routes = [*shared("head.*", on_mismatch="owners"), *shared("*")]
    signatures = {name: tightened(routes, ["head*"]).signature() for name in "AB"}
    names = [name for name in MODEL if name != "head.weight"]
    assert agree(signatures, routes, ["head*"]) == {"A": names, "B": names}
    with pytest.raises(InputError, match=r"`route head\.\*` to be that of a shared tensor of some client"):
        agree(signatures, routes)


def test_a_network_that_is_another_algorithms_is_named() -> None:
    with pytest.raises(InputError, match=r"`model` to be FedStar, .* but got one without `structure\.\*`"):
        RoutingTable([*shared("structure.*"), *personal("*")], MODEL, network="FedStar")
