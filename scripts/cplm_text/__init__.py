"""Token ids back to text, for scripts/tokenizer_service.py."""
