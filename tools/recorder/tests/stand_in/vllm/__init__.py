"""A stand-in for vLLM: names and signatures of its sparse operations. What they compute is a recording's."""
