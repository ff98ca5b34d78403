"""What each fix would gain: the step with its change, the chance that it pays, and what a trial measured."""
