"""Charts of statistics, of a job's memory and of simulations, drawn with matplotlib (extra ``plot``)."""
