"""The command `kintsugi`: an object, a verb, and what they need (docs/commands.md)."""
