"""What the stand-in's operations give, by name: a function of the arguments."""
answers = {}


def play(name, **arguments):
    return answers[name](**arguments)
