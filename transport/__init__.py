"""Links between tasks: frames, credit and one module a transport."""
