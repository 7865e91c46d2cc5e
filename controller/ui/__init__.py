"""`tuner ui`: a web page on this machine for a person who watches searches, and the server of that page.

It is built on `app` and `report` only. Starlette and uvicorn are an extra, and only this package imports them. The page
consists of plain ES modules in `static/`, without a build step.
"""
