"""Tables, ingest, importers, exporters and migrations of the local database."""
