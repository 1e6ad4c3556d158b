"""A backend made of numbers: scenarios, the server that plays them, virtual time to play them in, and real HTTP."""
