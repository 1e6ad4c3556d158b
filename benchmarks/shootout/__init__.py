"""The shoot-out: recordings and scenarios judged by the rules that people use today, and by ours."""
