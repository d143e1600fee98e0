// Package patience says how long a program waits for what must come: as long as the tests that start it (harness/patience.py).
package patience

import (
	"os"
	"strconv"
	"time"
)

// Limit is LEVERET_PATIENCE, which is in seconds.
var Limit = limit()

func limit() time.Duration {
	text, set := os.LookupEnv("LEVERET_PATIENCE")
	if !set {
		return 180 * time.Second
	}
	seconds, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return time.Duration(seconds) * time.Second
}
