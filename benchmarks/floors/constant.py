"""An aiohttp server that answers every POST to `/PATH` with the bytes of the file `PATH` in a folder.

`python -m benchmarks.floors.constant FOLDER`: the port it listens at is in the file `port` there.
"""

import asyncio
import sys
from pathlib import Path

from aiohttp import web

LARGEST_REQUEST = 64 * 1024 * 1024


def answers_in(folder: Path) -> dict[str, bytes]:
    """Return what to answer, by path."""
    return {f"/{file.name}": file.read_bytes() for file in folder.iterdir() if file.is_file()}


async def serve(folder: Path) -> None:
    """Serve until killed."""

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=answers[request.path], content_type="application/json")

    answers = answers_in(folder)
    application = web.Application(client_max_size=LARGEST_REQUEST)
    application.router.add_post("/{verb}", answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    (folder / "port.new").write_text(str(runner.addresses[0][1]))
    (folder / "port.new").rename(folder / "port")
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
