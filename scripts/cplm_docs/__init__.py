"""Turns the documentation that distributions package (HTML, POD, roff, plain) into English text."""
