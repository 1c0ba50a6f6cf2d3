"""One sequence as its reader sees it: tokens in, text out, stop strings found."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.batch import SequenceUpdate
from octavo.engine.outputs import ChoiceDelta
from octavo.params import SamplingParams
from octavo.request import FinishReason
from octavo.text.detokenizer import Detokenizer
from octavo.text.tokenizer import Tokenizer

TEXT_ERROR = "the engine failed while it turned this answer into text"


@dataclass(frozen=True, slots=True)
class Advance:
    """What one update did to a choice. `ended_by_text`: the scheduler does not know yet that it ended."""

    delta: ChoiceDelta
    ended_by_text: FinishReason | None = None


class Choice:
    """The text side of one sequence."""

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams, index: int) -> None:
        self.index = index
        self.num_tokens = 0
        self.last_token_at: float | None = None
        """On time.monotonic()."""
        self.is_finished = False
        self._params = params
        self._detokenizer = Detokenizer(
            tokenizer,
            stop=params.stop,
            include_stop=params.include_stop_str_in_output,
            skip_special_tokens=params.skip_special_tokens,
        )

    def advance(self, update: SequenceUpdate) -> Advance:
        """Take one update of the scheduler. A failure of the text side ends this choice alone."""
        text, stop = "", None
        if update.token_id is not None:
            self.num_tokens += 1
            text, stop = self._push(update)
        reason = update.finish_reason
        ended_by_text = None
        if stop is not None:
            ended_by_text = FinishReason.STOP if reason is None else None
            reason = FinishReason.STOP
        elif reason is not None:
            text += self._detokenizer.flush()
        self.is_finished = reason is not None
        delta = ChoiceDelta(
            index=self.index,
            text=text,
            token_ids=() if update.token_id is None else (update.token_id,),
            logprobs=None if update.logprobs is None else (update.logprobs,),
            finish_reason=None if reason is None else reason.value,
            stop_reason=update.stop_token_id if stop is None else stop,
            error=update.error,
        )
        return Advance(delta, ended_by_text)

    def fail(self) -> ChoiceDelta:
        self.is_finished = True
        return ChoiceDelta(
            index=self.index, text="", token_ids=(), finish_reason=FinishReason.ERROR.value, error=TEXT_ERROR
        )

    def _push(self, update: SequenceUpdate) -> tuple[str, str | None]:
        assert update.token_id is not None
        ended_by_token = update.finish_reason is FinishReason.STOP
        if ended_by_token and not self._params.include_stop_str_in_output:
            return "", None  # the token that ended the answer is not part of its text
        piece = self._detokenizer.push(update.token_id, check_stop=self.num_tokens >= self._params.min_tokens)
        return piece.text, piece.stop
