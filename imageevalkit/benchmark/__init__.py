"""The benchmark API: the contract, questions and answers, and base classes for common shapes."""
