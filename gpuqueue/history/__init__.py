"""The history database: an SQL record of jobs and runs. Only this package imports sqlalchemy and alembic."""
