"""`tuner ui`: a web page on this machine for a person who watches searches, and the server that gives it.

Built on `app` and `report` only. Starlette and uvicorn are an extra and are imported by nothing outside this package.
The page is plain ES modules in `static/`; there is no build step.
"""
