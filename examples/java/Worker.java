// SPDX-License-Identifier: Apache-2.0
// A worker in Java over the control socket: protobuf, a UNIX socket and a mapped file.
//
// Build and run (Debian: openjdk-17-jdk-headless, libprotobuf-java, protobuf-compiler):
//
//     mkdir -p out
//     protoc -I../../proto --java_out=out control.proto ttrpc_wire.proto
//     javac -nowarn -d out -cp /usr/share/java/protobuf.jar Worker.java $(find out -name '*.java')
//     java -cp out:/usr/share/java/protobuf.jar Worker SOCKET send ROUTE   a float32 [80, 3000] written in place, then sent
//     java -cp out:/usr/share/java/protobuf.jar Worker SOCKET receive      the next message of the stage's inbox
//     java -cp out:/usr/share/java/protobuf.jar Worker SOCKET call ROUTE   calls the method Scale of a stage with such a tensor
//     java -cp out:/usr/share/java/protobuf.jar Worker SOCKET serve        answers one call: Scale doubles the tensor
import com.google.protobuf.ByteString;
import com.google.protobuf.Message;
import com.google.protobuf.Parser;
import java.io.EOFException;
import java.io.IOException;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.channels.FileChannel.MapMode;
import java.nio.channels.SocketChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.function.IntFunction;
import ringside.ttrpc.v1.TtrpcWire.Request;
import ringside.ttrpc.v1.TtrpcWire.Response;
import ringside.v1.ControlOuterClass.*;

public class Worker {
    private static final int HEADER_BYTES = 10; // bytes of the payload, stream, type, flags; big-endian
    private static final byte REQUEST = 1;
    private static final long TIMEOUT_NS = 10_000_000_000L;

    private final SocketChannel socket;
    private int stream = -1;

    private Worker(String path) throws IOException {
        socket = SocketChannel.open(UnixDomainSocketAddress.of(path));
    }

    /** One call at a time, so the next frame is its answer. */
    private <A extends Message> A call(String method, Message request, Parser<A> answer) throws IOException {
        byte[] payload = Request.newBuilder().setService("ringside.v1.Control").setMethod(method)
                .setPayload(request.toByteString()).setTimeoutNano(TIMEOUT_NS).build().toByteArray();
        stream += 2;
        ByteBuffer frame = ByteBuffer.allocate(HEADER_BYTES + payload.length);
        frame.putInt(payload.length).putInt(stream).put(REQUEST).put((byte) 0).put(payload).flip();
        while (frame.hasRemaining()) {
            socket.write(frame);
        }
        Response response = Response.parseFrom(read(read(HEADER_BYTES).getInt()));
        if (response.getStatus().getCode() != 0) {
            throw new IOException(response.getStatus().getMessage()); // "NAME: what was wrong"
        }
        return answer.parseFrom(response.getPayload());
    }

    private ByteBuffer read(int bytes) throws IOException {
        ByteBuffer data = ByteBuffer.allocate(bytes);
        while (data.hasRemaining()) {
            if (socket.read(data) < 0) {
                throw new EOFException("closed by the sidecar");
            }
        }
        return data.flip();
    }

    /** Maps a tensor of a body file. */
    private static ByteBuffer mapped(String path, boolean writable, long offset, long bytes) throws IOException {
        try (FileChannel file = writable
                ? FileChannel.open(Path.of(path), StandardOpenOption.READ, StandardOpenOption.WRITE)
                : FileChannel.open(Path.of(path), StandardOpenOption.READ)) {
            return file.map(writable ? MapMode.READ_WRITE : MapMode.READ_ONLY, offset, bytes)
                    .order(ByteOrder.nativeOrder());
        }
    }

    private static final Options OPTIONS = Options.newBuilder()
            .setMetadata(ByteString.copyFromUtf8("{\"from\":\"java\"}")).setMetadataKind(MetadataKind.JSON).build();

    /** A loan that is written where it lies. */
    private Lease filled(IntFunction<Float> number) throws IOException {
        LoanResponse loan = call("Loan", LoanRequest.newBuilder().setMetadataBytes(128)
                .addTensors(Tensor.newBuilder().setDtype(Dtype.FLOAT32).addShape(80).addShape(3000)).build(),
                LoanResponse.parser());
        Tensor tensor = loan.getTensors(0);
        ByteBuffer data = mapped(loan.getBodyPath(), true, loan.getSlotOffset() + tensor.getOffset(), tensor.getBytes());
        for (int i = 0; i < 80 * 3000; i++) {
            data.putFloat(number.apply(i));
        }
        return loan.getLease();
    }

    private void send(String route) throws IOException {
        SendResponse sent = call("Send", SendRequest.newBuilder().setLease(filled(i -> i / 2f)).setRoute(route)
                .setOptions(OPTIONS).build(), SendResponse.parser());
        System.out.printf("sent as ticket %#x%n", sent.getTicket());
    }

    private static ByteBuffer dataOf(ringside.v1.ControlOuterClass.Message message) throws IOException {
        Tensor tensor = message.getTensors(0);
        return mapped(message.getBodyPath(), false, message.getSlotOffset() + tensor.getOffset(), tensor.getBytes());
    }

    private ringside.v1.ControlOuterClass.Message next() throws IOException {
        return call("Receive", ReceiveRequest.newBuilder().setRequestId(1).build(), ReceiveResponse.parser()).getMessage();
    }

    private void release(ringside.v1.ControlOuterClass.Message message) throws IOException {
        call("Release", LeaseRequest.newBuilder().setLease(message.getLease()).build(), Empty.parser());
    }

    private void use(ringside.v1.ControlOuterClass.Message message) throws IOException {
        Tensor tensor = message.getTensors(0);
        ByteBuffer data = dataOf(message);
        double sum = 0;
        while (data.hasRemaining()) {
            sum += data.getFloat();
        }
        System.out.printf("received %s %s sum %.0f %s%n", tensor.getDtype().name().toLowerCase(), tensor.getShapeList(),
                sum, message.getMetadata().toStringUtf8());
        release(message);
    }

    private void call(String route) throws IOException {
        use(call("Call", CallRequest.newBuilder().setLease(filled(i -> i / 2f)).setRoute(route).setMethod("Scale")
                .setOptions(OPTIONS).build(), CallResponse.parser()).getMessage());
    }

    private void serve() throws IOException {
        ringside.v1.ControlOuterClass.Message request = next();
        ReplyRequest.Builder reply = ReplyRequest.newBuilder().setRequest(request.getLease());
        if (request.getMethod().equals("Scale")) {
            ByteBuffer data = dataOf(request);
            reply.setReply(filled(i -> 2 * data.getFloat(4 * i))).setOptions(OPTIONS);
        } else {
            reply.setStatus(12).setText("no method \"" + request.getMethod() + "\"; there is: Scale"); // UNIMPLEMENTED
        }
        call("Reply", reply.build(), Empty.parser());
        release(request);
    }

    public static void main(String[] arguments) throws IOException {
        boolean toRoute = arguments.length > 1 && (arguments[1].equals("send") || arguments[1].equals("call"));
        if (arguments.length < 2 || toRoute != (arguments.length == 3)) {
            System.err.println("usage: Worker SOCKET send ROUTE | receive | call ROUTE | serve");
            System.exit(2);
        }
        Worker worker = new Worker(arguments[0]);
        worker.call("Attach", AttachRequest.newBuilder().setName("java").build(), AttachResponse.parser());
        switch (arguments[1]) {
            case "send" -> worker.send(arguments[2]);
            case "call" -> worker.call(arguments[2]);
            case "serve" -> worker.serve();
            default -> worker.use(worker.next());
        }
    }
}
