"""The book: SQL tells what has happened. The only room that imports sqlalchemy and alembic."""
