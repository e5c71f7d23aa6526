"""Why a job waits, in sentences. :mod:`gpuqueue.words.why.sentences` has all of them."""
