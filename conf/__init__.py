"""Configs of the commands, for Hydra: ``pkg://physicsnemo_flarepp.conf`` as a search path."""
