"""What every object store promises: objects, keys, ways to fail. It knows no store; the door of `store` names it."""
