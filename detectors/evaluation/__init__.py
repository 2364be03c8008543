"""From observations to fault events: levels, hysteresis, debounce, cables by both ends."""
