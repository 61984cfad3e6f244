"""What the learner moves and answers: sliders, guesses, a bar while something runs."""
