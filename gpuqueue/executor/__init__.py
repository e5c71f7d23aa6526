"""Python functions as jobs: an executor of ``concurrent.futures``, and a decorator.

A call is pickled with cloudpickle (extra ``python``) and becomes a job, or a member of an array. Where the code stays
in its directory, the call and its result are files in a directory of the caller. Where the code travels, the call
travels with it, and the result is a kept file that is fetched.

Start reading at ``executor.py``. ``submissions.py`` has the files of a submission, ``inside.py`` what runs in the job,
``watcher.py`` the thread that waits, with the futures.
"""
