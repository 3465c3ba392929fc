"""Examples to fine-tune on, to evaluate and to answer: text, words, questions."""
