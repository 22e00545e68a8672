"""The server backend: anything that speaks the OpenAI API, from vLLM and SGLang to MAX."""
