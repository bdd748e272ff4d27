"""Check of the version that a JSON document states, before the document is decoded strictly."""

from __future__ import annotations

import msgspec

from calabash.model.versions import Format


class _Stated(msgspec.Struct, frozen=True):
    version: int | None = None


# Created at import: msgspec crashes when two threads create the first decoder of a type at the same time.
_STATED = msgspec.json.Decoder(_Stated)


def require_stated(form: Format, text: str | bytes, owner: str) -> None:
    """Raise CalabashError if ``text`` is a JSON object whose field ``version`` is not supported.

    Called before or after strict decoding fails: a newer version may have fields that this one does not know.

    Args:
        form: the format of the text.
        owner: the object that has the version, as in "pod team/job".
    """
    try:
        stated = _STATED.decode(text)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeError, RecursionError):
        return  # the strict decoder reports what is wrong
    if stated.version is not None:
        form.require(stated.version, owner)
