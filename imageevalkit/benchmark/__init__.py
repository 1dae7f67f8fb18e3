"""What a benchmark is: the contract, the questions and answers, and bases for common shapes."""
