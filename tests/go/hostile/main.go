// Hostile clients: very many connections from several loopback addresses, each of one kind of abuse, held open in waves.
// After each wave that is up it prints a line of JSON and waits for a line on standard input, so that the test can look at
// the server while it is under siege.
package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"leveret-scenarios/patience"
)

// atOnce is how many connect at the same time.
const atOnce = 256

// addresses are those of the loopback network that clients come from.
const addresses = 16

type wave struct {
	Kind string `json:"kind"`
	// Up have done their worst, Ended were closed by the server before or after that.
	Up    int64 `json:"up"`
	Ended int64 `json:"ended"`
}

func main() {
	server := flag.String("server", "", "host and port")
	count := flag.Int("count", 1000, "clients in a wave")
	flag.Parse()
	input := bufio.NewScanner(os.Stdin)
	for _, abuse := range abuses {
		told := wave{Kind: abuse.kind}
		var (
			mutex sync.Mutex
			open  []net.Conn
			done  sync.WaitGroup
		)
		slots := make(chan struct{}, atOnce)
		for number := range *count {
			slots <- struct{}{}
			done.Go(func() {
				defer func() { <-slots }()
				conn, err := connect(*server, number)
				if err == nil {
					_ = conn.SetDeadline(time.Now().Add(patience.Limit))
					err = abuse.do(conn)
				}
				if err != nil {
					atomic.AddInt64(&told.Ended, 1)
				} else {
					atomic.AddInt64(&told.Up, 1)
				}
				if conn != nil {
					mutex.Lock()
					open = append(open, conn)
					mutex.Unlock()
				}
			})
		}
		done.Wait()
		line, err := json.Marshal(told)
		if err != nil {
			panic(err)
		}
		fmt.Println(string(line))
		input.Scan()
		for _, conn := range open {
			conn.Close()
		}
	}
}

func connect(server string, number int) (net.Conn, error) {
	from := &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+number%addresses))}
	dialer := net.Dialer{LocalAddr: from, Timeout: patience.Limit}
	return dialer.Dial("tcp", server)
}

// abuse is done once for each connection, which is then held open. An error tells that the server has closed it.
type abuse struct {
	kind string
	do   func(net.Conn) error
}

var abuses = []abuse{
	{"says nothing", func(net.Conn) error { return nil }},
	{"stops in the protocol header", func(conn net.Conn) error { return send(conn, header[:5]) }},
	{"stops in the login", stopInLogin},
	{"sends noise", func(conn net.Conn) error { return send(conn, noise) }},
	{"announces a frame of 4 GiB", announceFrame},
	{"guesses passwords", guess},
	{"opens and idles", func(conn net.Conn) error { return logIn(conn) }},
	{"opens 200 channels", openChannels},
	{"stops in a message", stopInMessage},
	{"does not read its answers", askAndNotRead},
}

var (
	header = []byte("AMQP\x00\x00\x09\x01")
	noise  = make([]byte, 64<<10)
)

func stopInLogin(conn net.Conn) error {
	if err := send(conn, header); err != nil {
		return err
	}
	// Most of a start-ok that would be as large as frames may be before the login.
	return send(conn, append(frameHeader(1, 0, 8000), make([]byte, 7900)...))
}

func announceFrame(conn net.Conn) error {
	if err := logIn(conn); err != nil {
		return err
	}
	return send(conn, append(frameHeader(3, 1, 1<<32-1), noise...))
}

func guess(conn net.Conn) error {
	if err := send(conn, append(append([]byte{}, header...), startOk("guest", "wrong")...)); err != nil {
		return err
	}
	return readUntil(conn, 10, 30)
}

func openChannels(conn net.Conn) error {
	if err := logIn(conn); err != nil {
		return err
	}
	var out []byte
	for channel := range 200 {
		out = append(out, method(uint16(channel+1), 20, 10, []byte{0})...)
	}
	if err := send(conn, out); err != nil {
		return err
	}
	for range 200 {
		if err := readUntil(conn, 20, 11); err != nil {
			return err
		}
	}
	return nil
}

// stopInMessage announces a body of 1 MiB and sends the beginning of it.
func stopInMessage(conn net.Conn) error {
	if err := logIn(conn); err != nil {
		return err
	}
	out := method(1, 20, 10, []byte{0})
	out = append(out, method(1, 60, 40, append([]byte{0, 0, 10}, "amq.fanout\x00\x00"...))...)
	content := binary.BigEndian.AppendUint64([]byte{0, 60, 0, 0}, 1<<20)
	out = append(out, frame(2, 1, append(content, 0, 0))...)
	out = append(out, frame(3, 1, noise)...)
	return send(conn, out)
}

// askAndNotRead asks for as much as it can without reading a single answer.
func askAndNotRead(conn net.Conn) error {
	if err := logIn(conn); err != nil {
		return err
	}
	out := method(1, 20, 10, []byte{0})
	for range 2000 {
		// queue.declare, passive, of a queue that is there.
		out = append(out, method(1, 50, 10, append([]byte{0, 0, 7}, "hostile\x01\x00\x00\x00\x00"...))...)
	}
	return send(conn, out)
}

func logIn(conn net.Conn) error {
	if err := send(conn, append(append([]byte{}, header...), startOk("guest", "guest")...)); err != nil {
		return err
	}
	if err := readUntil(conn, 10, 30); err != nil {
		return err
	}
	// tune-ok without heartbeats, and open of "/".
	out := method(0, 10, 31, []byte{7, 255, 0, 2, 0, 0, 0, 0})
	if err := send(conn, append(out, method(0, 10, 40, []byte{1, '/', 0, 0})...)); err != nil {
		return err
	}
	return readUntil(conn, 10, 41)
}

func startOk(user, password string) []byte {
	response := "\x00" + user + "\x00" + password
	arguments := append([]byte{0, 0, 0, 0, 5}, "PLAIN"...)
	arguments = binary.BigEndian.AppendUint32(arguments, uint32(len(response)))
	arguments = append(append(arguments, response...), append([]byte{5}, "en_US"...)...)
	return method(0, 10, 11, arguments)
}

// readUntil reads frames up to a method. Another one that ends something is an error, as is the end.
func readUntil(conn net.Conn, class, number uint16) error {
	for {
		var head [7]byte
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			return err
		}
		payload := make([]byte, binary.BigEndian.Uint32(head[3:])+1)
		if _, err := io.ReadFull(conn, payload); err != nil {
			return err
		}
		if head[0] != 1 {
			continue
		}
		got := [2]uint16{binary.BigEndian.Uint16(payload), binary.BigEndian.Uint16(payload[2:])}
		if got == [2]uint16{class, number} {
			return nil
		}
		if got == [2]uint16{10, 50} || got == [2]uint16{20, 40} {
			return fmt.Errorf("closed by the server")
		}
	}
}

func send(conn net.Conn, data []byte) error {
	_, err := conn.Write(data)
	return err
}

func method(channel, class, number uint16, arguments []byte) []byte {
	ids := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, class), number)
	return frame(1, channel, append(ids, arguments...))
}

func frame(kind byte, channel uint16, payload []byte) []byte {
	return append(append(frameHeader(kind, channel, uint32(len(payload))), payload...), 0xce)
}

func frameHeader(kind byte, channel uint16, size uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16([]byte{kind}, channel), size)
}
