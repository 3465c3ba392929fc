"""Labelled text for fine-tuning."""
