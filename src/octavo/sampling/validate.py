"""The checks of sampling parameters that need to know the model."""

from __future__ import annotations

from octavo.params import ParameterError, SamplingParams


def validate(params: SamplingParams, vocab_size: int) -> None:
    """Raise ParameterError, naming the field, for token ids that the model does not have."""
    for name, token_ids in (("logit_bias", params.logit_bias), ("stop_token_ids", params.stop_token_ids)):
        for token_id in token_ids:
            if token_id >= vocab_size:
                raise ParameterError(
                    f"{name} holds token id {token_id}; the vocabulary has {vocab_size} tokens", name
                )
