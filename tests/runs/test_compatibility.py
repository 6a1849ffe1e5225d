from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flgraph.errors import InputError
from flgraph.runs.compatibility import check_settings, flatten, sealed

SETTINGS = {"seed": 0, "trainer": {"local_epochs": 1}}


@pytest.mark.parametrize(
    ("current", "message"),
    [
        ({"seed": 1, "trainer": {"local_epochs": 1}}, r"`seed` to be 0 as in checkpoint .* but got 1"),
        ({"seed": 0, "trainer": {"local_epochs": 2}}, r"`trainer\.local_epochs` to be 1 .* but got 2"),
        ({"seed": 0, "trainer": {"local_epochs": 1, "mu": 0.5}}, r"`trainer\.mu` to be None .* but got 0\.5"),
        ({"seed": 0, "trainer": {}}, r"`trainer"),
    ],
)
def test_settings_that_differ_are_named(current: dict[str, Any], message: str, tmp_path: Path) -> None:
    check_settings(SETTINGS, SETTINGS, {}, tmp_path)
    with pytest.raises(InputError, match=message):
        check_settings(SETTINGS, current, {}, tmp_path)


def test_of_a_digest_the_fields_are_named(tmp_path: Path) -> None:
    then, now = ({"data": {"east": {"settings": {"declared": key}}}} for key in ("0d71", "5af9"))
    with pytest.raises(InputError, match=r"`data\.classes` and `data\.columns` to be as in .* but got something else"):
        check_settings(then, now, {}, tmp_path)


def test_tuples_equal_the_lists_they_are_saved_as(tmp_path: Path) -> None:
    saved = json.loads(json.dumps({"base": ("convs.*",)}))
    check_settings(saved, {"base": ("convs.*",)}, {}, tmp_path)


def test_settings_that_older_checkpoints_lack_are_what_older_versions_did(tmp_path: Path) -> None:
    defaults = {"trainer.initial_weights": "first", "callbacks.stop.after": (1, 2)}
    now: dict[str, Any] = {"local_epochs": 1, "initial_weights": "first"}
    check_settings(SETTINGS, {**SETTINGS, "trainer": now}, defaults, tmp_path)
    check_settings(SETTINGS, {**SETTINGS, "callbacks": {"stop": {"after": (1, 2)}}}, defaults, tmp_path)
    check_settings(SETTINGS, {**SETTINGS, "callbacks": {}}, defaults, tmp_path)
    for value, without in (("mean", defaults), ("first", {})):
        with pytest.raises(InputError, match=rf"`trainer\.initial_weights` to be None as in .* but got '{value}'"):
            check_settings(SETTINGS, {**SETTINGS, "trainer": {**now, "initial_weights": value}}, without, tmp_path)
    with pytest.raises(InputError, match=r"`callbacks` to be left out as in checkpoint .* but got it"):
        check_settings(SETTINGS, {**SETTINGS, "callbacks": {"stop": {"after": (1, 3)}}}, defaults, tmp_path)


def test_runs_go_on_on_other_machines(tmp_path: Path) -> None:
    then, now = ({"trainer": {"aggregator": {"server_accelerator": where}}} for where in ("gpu", "cpu"))
    check_settings(then, now, {}, tmp_path)


def test_classes_are_named_by_what_they_are_chosen_for(tmp_path: Path) -> None:
    one, other = ({"model": {"class_path": name, "init_args": {"lr": 0.1}}} for name in "AB")
    assert flatten(one) == {"model": "A", "model.lr": 0.1}
    with pytest.raises(InputError, match=r"`model` to be 'A' as in checkpoint .* but got 'B'"):
        check_settings(one, other, {}, tmp_path)


def test_sealed_settings_are_compared_where_both_sides_have_the_key(tmp_path: Path) -> None:
    """Sites tell a keyed digest of their data's settings; who has the settings can compare numbers of samples only."""
    settings = {"num_train_samples": 3, "num_nodes": (2, 4), "predicted": [("film", "by", "person")]}
    read = json.loads(json.dumps(settings))  # as a manifest has them
    own, key = sealed(settings, b"key"), b"key"
    assert sealed(read, key) == own != sealed(read, b"other")
    assert "film" not in json.dumps(own)
    alphas = [sealed({**settings, "alpha": alpha}, key) for alpha in (1, 1.0, 1.5)]
    assert alphas[0] == alphas[1] != alphas[2]

    def check(saved: dict[str, Any], current: dict[str, Any]) -> None:
        check_settings({"data": {"A": saved}}, {"data": {"A": current}}, {}, tmp_path)

    check(own, settings)
    check(read, own)
    check(own, {**settings, "num_nodes": (2, 5)})  # who knows
    check({**read, "trainer": {"a": 1}}, {**own, "trainer": {"a": 1}})
    with pytest.raises(InputError, match=r"`data\.A\.num_train_samples` to be 3 as in checkpoint .* but got 4"):
        check(own, {**settings, "num_train_samples": 4})
    with pytest.raises(InputError, match=r"`data\.A` to be as in checkpoint .* \(it sends a digest only\)"):
        check(own, sealed({**settings, "num_nodes": (2, 5)}, key))
    with pytest.raises(InputError, match=r"`data\.A\.trainer` to be there as in checkpoint"):
        check({**own, "trainer": {"precision": 16}}, settings)
