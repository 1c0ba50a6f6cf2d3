"""What can never run is refused at the door, with the field and the numbers."""

from __future__ import annotations

import pytest

from octavo.params import ParameterError
from support.simulated_engine import SimulatedEngine


def refused(engine: SimulatedEngine, num_prompt: int, **params: object) -> ParameterError:
    with pytest.raises(ParameterError) as caught:
        engine.add(f"refused-{num_prompt}", [1] * num_prompt, **params)  # type: ignore[arg-type]
    assert not engine.scheduler.has_work
    return caught.value


def test_an_empty_prompt() -> None:
    assert refused(SimulatedEngine(), 0).param == "prompt"


def test_a_prompt_as_long_as_the_model() -> None:
    engine = SimulatedEngine(max_model_len=32)
    error = refused(engine, 32)
    assert error.param == "prompt"
    assert "32" in str(error)
    assert "31" in str(error)
    engine.add("fits", [1] * 31, max_tokens=None)
    engine.run()
    assert len(engine.outputs["fits", 0]) == 1


@pytest.mark.parametrize("num_prompt", [402, 800, 1500])
def test_a_prompt_longer_than_the_pool_does_not_block_those_behind_it(num_prompt: int) -> None:
    engine = SimulatedEngine(num_blocks=100, block_size=4, max_model_len=2048)
    error = refused(engine, num_prompt)
    assert error.param == "prompt"
    assert str(num_prompt) in str(error)
    assert "100" in str(error)
    engine.add("next", range(20))
    engine.run(max_steps=12)
    engine.assert_right("next")
    assert engine.scheduler.stats().num_refused == 1


def test_more_choices_than_can_run() -> None:
    error = refused(SimulatedEngine(max_num_seqs=4), 3, n=5)
    assert error.param == "n"
    assert "4" in str(error)


def test_reserve_mode_needs_room_to_the_end() -> None:
    engine = SimulatedEngine(num_blocks=8, block_size=4, admission="reserve", max_model_len=100)
    assert refused(engine, 8, max_tokens=20, n=3).param == "n"
    engine.add("ends with the pool", [1] * 8, max_tokens=10**6)
    engine.run()
    assert len(engine.outputs["ends with the pool", 0]) == 8 * 4 + 1 - 8


def test_a_request_id_in_use() -> None:
    engine = SimulatedEngine()
    engine.add("a", [1, 2])
    with pytest.raises(ParameterError) as caught:
        engine.add("a", [3])
    assert caught.value.param == "request_id"
    engine.run()
    engine.requests.clear()
    engine.reasons.clear()
    engine.outputs.clear()
    engine.add("a", [1, 2])
    engine.run()
