"""Carries out plans: reads, checks, writes. Decides nothing."""
