"""Exit codes of `kintsugi`, the same for every verb (docs/commands.md)."""

OK = 0
FAILED = 1  # it found something wrong, was refused, or there is no such thing
USAGE = 2  # the words, or the settings, are not as expected
NO_SITE = 3  # the site's database is not there, has no tables or does not answer
