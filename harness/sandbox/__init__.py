"""Foreign environment modules, run in contained processes. `host` is the way in; `runner` is what runs inside."""
