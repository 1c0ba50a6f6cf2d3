"""Seeded text of common English words, each about one token for any model."""

from __future__ import annotations

import random

_TEXT = (
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system program question work number night point "
    "home water room mother area money story fact month lot right study book eye job word business "
    "issue side kind head house service friend father power hour game line end member law car city name "
    "team minute idea body back parent face others level office door health person art war history "
    "party result change morning reason"
)
WORDS = _TEXT.split(" ")


def words(seed: object, count: int) -> str:
    """`count` words. The same seed (anything with a repr) gives the same words, everywhere."""
    return " ".join(random.Random(repr(seed)).choices(WORDS, k=count))
