"""Test frames: proves that a bridge forwards, measures round trips and rates between two endpoints, and notes the cores used."""
